"""torch's module of this name."""

from elastic.rendezvous.backends import C10dRendezvousBackend, create_backend

__all__ = ["C10dRendezvousBackend", "create_backend"]
