"""torch's module of this name; the state is in etcd's v3 interface."""

from elastic.rendezvous.backends import create_backend
from elastic.rendezvous.etcd import EtcdRendezvousBackend

__all__ = ["EtcdRendezvousBackend", "create_backend"]
