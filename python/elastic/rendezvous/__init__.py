"""How the nodes of a job find each other, under the names of ``torch.distributed.elastic``.

::

    parameters = RendezvousParameters("c10d", "node0:29400", "job7", min_nodes=2, max_nodes=4)
    handler = get_rendezvous_handler(parameters)
    info = handler.next_rendezvous()  # blocks; info.rank, info.world_size, info.store
    ...
    if handler.num_nodes_waiting() > 0:  # returns at once, without a request
        info = handler.next_rendezvous()
    handler.shutdown()

``elastic-launch`` does not use these handlers: its agents have their own native membership.
"""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.rendezvous.keepers.backends import (
        C10dRendezvousBackend,
        create_backend,
    )
    from elastic.rendezvous.keepers.etcd import EtcdRendezvousBackend
    from elastic.torch_compat.rendezvous.api import (
        RendezvousBackend,
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStateError,
        RendezvousStoreInfo,
        RendezvousTimeoutError,
    )
    from elastic.torch_compat.rendezvous.handlers import (
        DynamicRendezvousHandler,
        RendezvousSettings,
        RendezvousTimeout,
        create_handler,
    )
    from elastic.torch_compat.rendezvous.registry import (
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        get_rendezvous_handler,
        rendezvous_handler_registry,
    )

# The modules, and the public names that each defines; loaded on first use.
_HOMES = {
    "elastic.rendezvous.keepers.backends": "C10dRendezvousBackend create_backend",
    "elastic.torch_compat.rendezvous.handlers": (
        "DynamicRendezvousHandler RendezvousSettings RendezvousTimeout create_handler"
    ),
    "elastic.rendezvous.keepers.etcd": "EtcdRendezvousBackend",
    "elastic.torch_compat.rendezvous.api": (
        "RendezvousBackend RendezvousClosedError RendezvousConnectionError RendezvousError "
        "RendezvousGracefulExitError RendezvousHandler RendezvousInfo RendezvousParameters "
        "RendezvousStateError RendezvousStoreInfo RendezvousTimeoutError"
    ),
    "elastic.torch_compat.rendezvous.registry": (
        "RendezvousHandlerCreator RendezvousHandlerRegistry get_rendezvous_handler "
        "rendezvous_handler_registry"
    ),
}

__all__ = [
    "C10dRendezvousBackend",
    "DynamicRendezvousHandler",
    "EtcdRendezvousBackend",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "create_backend",
    "create_handler",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
