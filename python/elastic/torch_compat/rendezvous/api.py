"""The interface of a rendezvous handler, its parameters, its results, and its exceptions.

The exceptions have torch's names::

    RendezvousError                        elastic.errors.RendezvousError
    ├── RendezvousClosedError              elastic.errors.RendezvousClosed
    ├── RendezvousTimeoutError             elastic.errors.RendezvousTimeout, a TimeoutError
    ├── RendezvousConnectionError          elastic.errors.RendezvousUnavailable, a ConnectionError
    ├── RendezvousStateError               what is stored cannot be read
    └── RendezvousGracefulExitError        the job has succeeded while this node was waiting
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import Any

from elastic import _lazy, _torch_bases, errors
from elastic._C import StoreClient
from elastic._data import data
from elastic._plug_in import plug_in
from elastic.errors import ConfigError
from elastic.text import is_number, truth

# torch's module of this name has these names too.
_HOMES = {
    "elastic.torch_compat.rendezvous.registry": (
        "RendezvousHandlerCreator RendezvousHandlerRegistry rendezvous_handler_registry"
    ),
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)

RendezvousError = errors.RendezvousError
RendezvousClosedError = errors.RendezvousClosed
RendezvousTimeoutError = errors.RendezvousTimeout
RendezvousConnectionError = errors.RendezvousUnavailable


class RendezvousStateError(RendezvousError):
    """A backend's content is not the state of a rendezvous."""


class RendezvousGracefulExitError(RendezvousError):
    """The job has succeeded without this node."""


for _name in (
    *("RendezvousError", "RendezvousClosedError", "RendezvousTimeoutError"),
    *("RendezvousConnectionError", "RendezvousStateError", "RendezvousGracefulExitError"),
):
    _torch_bases.derive(globals()[_name], "rendezvous.api", _name)


class RendezvousParameters:
    """The parameters of a rendezvous. ``config`` has the keys of ``--rdzv-conf``."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,
    ) -> None:
        if not backend:
            raise ConfigError("the name of the rendezvous backend is empty")
        check_nodes(min_nodes, max_nodes)
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = config

    def get(self, key: str, default: Any = None) -> Any:
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        value = self.config.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        return truth(str(value), f"the rendezvous setting {key}")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        value = self.config.get(key, default)
        if value is None:
            return value
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the rendezvous setting {key} is {value!r}: expected a whole number"
            ) from None


def check_nodes(min_nodes: int, max_nodes: int) -> None:
    if min_nodes < 1:
        raise ConfigError(f"min_nodes is {min_nodes}: a job has at least one node")
    if max_nodes < min_nodes:
        raise ConfigError(f"max_nodes is {max_nodes}, but min_nodes is {min_nodes}")


@data
class RendezvousStoreInfo:
    """The address at which a store for the workers of a round is, or can be created."""

    MASTER_ADDR_KEY = "MASTER_ADDR"
    MASTER_PORT_KEY = "MASTER_PORT"

    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Rank 0 writes its address and a port to ``store``; every rank reads them."""
        address_key = RendezvousStoreInfo.MASTER_ADDR_KEY
        port_key = RendezvousStoreInfo.MASTER_PORT_KEY
        if rank == 0:
            store.set(address_key, local_addr or socket.getfqdn())
            store.set(port_key, str(server_port or _free_port()))
        port = bytes(store.get(port_key)).decode()
        if not is_number(port):
            raise ConfigError(f"the store has {port!r} as {port_key}")
        return RendezvousStoreInfo(bytes(store.get(address_key)).decode(), int(port))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


class RendezvousInfo:
    """A round with this node's rank. ``rank`` and ``world_size`` count nodes.

    ``bootstrap_store_info``: the address of ``store``, the workers' MASTER_ADDR and MASTER_PORT.
    """

    def __init__(
        self, store: Any, rank: int, world_size: int, bootstrap_store_info: RendezvousStoreInfo
    ) -> None:
        self._store = store
        self.rank = rank
        self.world_size = world_size
        self.bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Any:
        """A store that only this round's members use; elastic's handlers: a StoreClient."""
        return self._store


class ServedRound(RendezvousInfo):
    """A round whose store this library serves. The client connects on first use."""

    def __init__(self, rank: int, world_size: int, where: RendezvousStoreInfo) -> None:
        super().__init__(None, rank, world_size, where)

    @property
    def store(self) -> StoreClient:
        if self._store is None:
            where = self.bootstrap_store_info
            self._store = StoreClient(where.master_addr, where.master_port)
        client: StoreClient = self._store
        return client


class RendezvousHandler(ABC):
    """One node's membership in a rendezvous."""

    @abstractmethod
    def get_backend(self) -> str:
        """The name under which the handler is registered."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may connect to the store that ``next_rendezvous`` describes."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Joins, and waits for a round in which this node is a member.

        Raises RendezvousClosedError, RendezvousTimeoutError, RendezvousConnectionError,
        RendezvousStateError, or RendezvousGracefulExitError if the job has succeeded without it.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether no further round will be formed. May become True with a delay."""

    @abstractmethod
    def set_closed(self) -> None:
        """Ends the job's rendezvous for all nodes."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """The number of nodes that wait to join; if above 0, call next_rendezvous() again."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The name of the job."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Closes the rendezvous and leaves it; returns whether that was acknowledged."""


def shut_down(handler: RendezvousHandler) -> None:
    """Shuts a handler down at the end of a launch, whose result an error of it does not replace."""
    with plug_in("shutdown of the rendezvous handler"):
        handler.shutdown()


class RendezvousBackend(ABC):
    """A store with compare-and-set: it replaces a value only if it is still the one that was read.

    Inheritance is optional; any object with these members works. They may block, and are called
    from a thread of the agent. That thread needs the interpreter lock: if a program holds it for
    longer than ``node_timeout``, the other nodes count this node as lost.

    A further method is optional: ``wait_for_change(token, timeout)`` returns when the version is
    not that of ``token``, or after ``timeout`` seconds. It is called from another thread, at the
    same time as the others. Without it, or after an exception from it, the store is polled.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in messages."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Any] | None:
        """The stored state and a token for this version; None if nothing is stored."""

    @abstractmethod
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Replaces the version of ``token``; without one, only if nothing is stored.

        Returns the state that is stored now, its token, and whether it is ``state``.
        """
