"""Handlers by the name of their backend, from elastic and from other distributions."""

from __future__ import annotations

from collections.abc import Callable

from elastic import _torch_bases
from elastic._plug_in import registered
from elastic.errors import ConfigError, RendezvousError
from elastic.rendezvous.keepers.backends import ENTRY_POINTS, HANDLER_ENTRY_POINTS
from elastic.torch_compat.rendezvous.api import RendezvousHandler, RendezvousParameters

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class _WrongHandler(RendezvousError, RuntimeError):
    """torch raises a RuntimeError."""


class RendezvousHandlerRegistry:
    """The function that creates the handler, for each backend."""

    def __init__(self) -> None:
        self._registry: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        if not backend:
            raise ConfigError("the name of the rendezvous backend is empty")
        if self._registry.setdefault(backend, creator) is not creator:
            raise ConfigError(
                f"the rendezvous backend {backend!r} has been registered with "
                f"{self._registry[backend]} already"
            )

    def __contains__(self, backend: str) -> bool:
        """Whether the name is registered. An installed plug-in is registered on its first use."""
        return backend in self._registry

    def create_handler(self, parameters: RendezvousParameters) -> RendezvousHandler:
        name = parameters.backend
        creator = self._registry.get(name)
        if creator is None:
            creator = _load(name)
            if creator is None:
                known = ", ".join(sorted(self._registry))
                raise ConfigError(f"there is no rendezvous backend {name!r}; known are {known}")
            self._registry[name] = creator
        handler = creator(parameters)
        if not hasattr(handler, "get_backend"):
            raise _WrongHandler(
                f"the plug-in for {name!r} created an object of {type(handler).__name__}, which is "
                "no rendezvous handler"
            )
        if handler.get_backend() != name:
            raise _WrongHandler(
                f"the plug-in for {name!r} created a handler for {handler.get_backend()!r}"
            )
        return handler


def _load(name: str) -> RendezvousHandlerCreator | None:
    """The creator that an installed distribution registers under this name; None: none does."""
    entry = registered(HANDLER_ENTRY_POINTS, name)
    if entry is None:
        return None
    try:
        creator: RendezvousHandlerCreator = entry.load()()
    except Exception as error:
        raise RendezvousError(
            f"the rendezvous plug-in {name!r} ({entry.value}) cannot be loaded: {error}"
        ) from error
    return creator


def is_plugged_in_handler(name: str) -> bool:
    """Whether this program, or a third-party package without a backend, has such a handler."""
    if name in rendezvous_handler_registry:
        return True
    if registered(ENTRY_POINTS, name):
        return False
    return registered(HANDLER_ENTRY_POINTS, name) is not None


def _create_ours(parameters: RendezvousParameters) -> RendezvousHandler:
    from elastic.torch_compat.rendezvous import handlers

    return handlers.create(parameters)


rendezvous_handler_registry = RendezvousHandlerRegistry()
for _name in ("c10d", "static", "file", "tcpstore", "etcd", "etcd-v2"):
    rendezvous_handler_registry.register(_name, _create_ours)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler for the parameters: elastic's own or a plug-in's."""
    _torch_bases.update()
    return rendezvous_handler_registry.create_handler(params)
