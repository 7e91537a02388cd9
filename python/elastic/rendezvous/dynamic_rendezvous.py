"""torch's module of this name."""

from elastic.rendezvous.api import RendezvousBackend
from elastic.rendezvous.handlers import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
    create_handler,
)

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousSettings",
    "RendezvousTimeout",
    "create_handler",
]
