"""torch's module of this name."""

from elastic.rendezvous.backends import C10dRendezvousBackend
from elastic.rendezvous.backends import create_c10d_backend as create_backend

__all__ = ["C10dRendezvousBackend", "create_backend"]
