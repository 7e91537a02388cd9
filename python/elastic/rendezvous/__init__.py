"""How the nodes of a job find each other, under the names of ``torch.distributed.elastic``.

::

    parameters = RendezvousParameters("c10d", "node0:29400", "job7", min_nodes=2, max_nodes=4)
    handler = get_rendezvous_handler(parameters)
    info = handler.next_rendezvous()  # blocks; info.rank, info.world_size, info.store
    ...
    if handler.num_nodes_waiting() > 0:  # answered at once, from what was pushed
        info = handler.next_rendezvous()
    handler.shutdown()

``elastic-launch`` needs none of this: its agents have a seat of their own.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic.rendezvous.api import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
    )
    from elastic.rendezvous.backends import (
        C10dRendezvousBackend,
        RendezvousBackend,
        create_backend,
    )
    from elastic.rendezvous.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
    from elastic.rendezvous.etcd import EtcdRendezvousBackend
    from elastic.rendezvous.handlers import (
        DynamicRendezvousHandler,
        RendezvousSettings,
        RendezvousTimeout,
        create_handler,
    )
    from elastic.rendezvous.registry import (
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        get_rendezvous_handler,
        rendezvous_handler_registry,
    )

# Each public name and the module that has it; loaded when it is first used.
_HOMES = {
    "C10dRendezvousBackend": "backends",
    "DynamicRendezvousHandler": "handlers",
    "EtcdRendezvousBackend": "etcd",
    "RendezvousBackend": "backends",
    "RendezvousClosedError": "errors",
    "RendezvousConnectionError": "errors",
    "RendezvousError": "errors",
    "RendezvousGracefulExitError": "errors",
    "RendezvousHandler": "api",
    "RendezvousHandlerCreator": "registry",
    "RendezvousHandlerRegistry": "registry",
    "RendezvousInfo": "api",
    "RendezvousParameters": "api",
    "RendezvousSettings": "handlers",
    "RendezvousStateError": "errors",
    "RendezvousStoreInfo": "api",
    "RendezvousTimeout": "handlers",
    "RendezvousTimeoutError": "errors",
    "create_backend": "backends",
    "create_handler": "handlers",
    "get_rendezvous_handler": "registry",
    "rendezvous_handler_registry": "registry",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'elastic.rendezvous' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"elastic.rendezvous.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
