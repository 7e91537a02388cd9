"""Stores that keep the record of a job, which names its coordinator.

A backend is any object with ``name``, ``get_state`` and ``set_state`` as below: one of this module,
a native one from ``create``, or a third-party one, such as torch's.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from elastic import _C
from elastic._plug_in import registered
from elastic.constants import KEEPERS
from elastic.errors import ConfigError, StoreError
from elastic.rendezvous import keys
from elastic.text import split_endpoint
from elastic.torch_compat.rendezvous.api import (
    RendezvousBackend,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
)

TCP_STORE_PORT = 29400

# The entry points of functions that take an endpoint, a run id and the settings of --rdzv-conf, and
# return a backend.
ENTRY_POINTS = "elastic.backends"
# The entry points of functions without arguments that return a creator of handlers.
HANDLER_ENTRY_POINTS = "torchrun.handlers"


class C10dRendezvousBackend(RendezvousBackend):
    """The record under one key of a store with torch's methods: TCPStore, FileStore, StoreClient.

    Use ``create("tcpstore", ...)`` if the store is a server that accepts connections: that backend
    is native, and answers while Python is busy.
    """

    _NOTHING = b"-"  # never stored: not a base64 character

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ConfigError("the run id is empty")
        self._store = store
        self._key = f"elastic.rendezvous.{run_id}"

    @property
    def name(self) -> str:
        return "c10d"

    def get_state(self) -> tuple[bytes, bytes] | None:
        # A comparison that cannot succeed returns the stored value and, unlike get(), never waits.
        stored = self._compare_set(self._NOTHING, self._NOTHING)
        return None if stored == self._NOTHING else (_decode(stored), stored)

    def set_state(
        self, state: bytes, token: bytes | None = None
    ) -> tuple[bytes, bytes, bool] | None:
        if token is not None and not isinstance(token, bytes):
            current = self.get_state()  # an invalid token matches no version
            return None if current is None else (*current, False)
        wanted = base64.b64encode(state)
        stored = self._compare_set(token or b"", wanted)
        if stored == wanted:
            return state, stored, True
        if token is not None and stored == token and self.get_state() is None:
            return None  # the key was deleted; the next read reports it
        return _decode(stored), stored, False

    def _compare_set(self, expected: bytes, desired: bytes) -> bytes:
        try:
            found = self._store.compare_set(
                self._key, expected.decode("ascii", "replace"), desired.decode()
            )
            return bytes(found)
        except (RuntimeError, ValueError, OSError) as error:
            raise RendezvousConnectionError(f"the rendezvous store failed: {error}") from error


def _decode(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise RendezvousStateError(
            "the rendezvous store has another value under this key"
        ) from error


def create(name: str, endpoint: str, run_id: str, parameters: Mapping[str, Any]) -> Any:
    """The backend for the values of ``--rdzv-backend`` and ``--rdzv-endpoint``."""
    if name not in KEEPERS:
        return _create_plugged_in(name, endpoint, run_id, parameters)
    if not endpoint:
        raise ConfigError(f"with {name} an endpoint is required")
    if name == "file":
        return _C.file_backend(endpoint, run_id)
    if name == "tcpstore":
        host, port = split_endpoint(endpoint, "the rendezvous endpoint")
        return _C.store_backend(host, int(port or TCP_STORE_PORT), run_id)
    from elastic.rendezvous.keepers.etcd import create as create_etcd

    return create_etcd(name, endpoint, run_id, parameters)


def _create_plugged_in(name: str, endpoint: str, run_id: str, parameters: Mapping[str, Any]) -> Any:
    """A backend that an installed distribution registers under this name."""
    found = registered(ENTRY_POINTS, name)
    if found is None:
        if registered(HANDLER_ENTRY_POINTS, name):
            raise ConfigError(
                f"{name!r} is a rendezvous handler, which a program of its own can drive through "
                f"elastic.rendezvous; for an agent the plug-in needs a backend, in {ENTRY_POINTS}"
            )
        raise ConfigError(
            f"there is no rendezvous backend {name!r} for an agent; known are "
            f"{', '.join(('c10d', 'static', *KEEPERS))}, and entry points of {ENTRY_POINTS}"
        )
    try:
        return found.load()(endpoint, run_id, parameters)
    except Exception as error:
        raise ConfigError(
            f"the rendezvous backend {name!r} ({found.value}) cannot be created: {error}"
        ) from error


def create_backend(params: RendezvousParameters) -> tuple[Any, Any]:
    """A backend, and the store that belongs to it (None if there is none), as in torch.

    For ``c10d`` a TCPStore server at the endpoint, or a file with ``store_type=file``. A server is
    started here if ``is_host`` is set, or if it is not given and the endpoint is a free address of
    this host.
    """
    if params.backend == "c10d":
        return create_c10d_backend(params)
    if params.backend == "tcpstore":
        return _tcp_backend(params, params.get_as_bool("is_host", False))
    return create(params.backend, params.endpoint, params.run_id, params.config), None


def create_c10d_backend(params: RendezvousParameters) -> tuple[Any, Any]:
    """``create_backend`` for ``c10d``, whatever the name of the backend in ``params`` is."""
    named = str(params.get("store_type", "tcp")).strip()
    if keys.store_type(named, "the rendezvous settings") == "file":
        return create("file", params.endpoint, params.run_id, params.config), None
    return _tcp_backend(params, params.get_as_bool("is_host"))


def _tcp_backend(params: RendezvousParameters, is_host: bool | None) -> tuple[Any, Any]:
    host, port = split_endpoint(params.endpoint or "localhost", "the rendezvous endpoint")
    number = int(port or TCP_STORE_PORT)
    timeout = params.get_as_int("read_timeout", 60) or 0
    if timeout <= 0:
        raise ConfigError(f"the rendezvous setting read_timeout is {timeout}: expected 1 or more")
    store: _C.StoreClient | None = None
    if is_host is not False:
        try:
            store = _HostedStore(_C.StoreServer(host, number))
        except StoreError as error:
            if is_host:
                raise RendezvousConnectionError(f"the rendezvous store failed: {error}") from error
    if store is None:  # it is on another host, or another process of this host has started it
        try:
            store = _C.StoreClient(host, number, timeout=float(timeout))
        except StoreError as error:
            raise RendezvousConnectionError(f"the rendezvous store failed: {error}") from error
    return _C.store_backend(host, store.port, params.run_id), store


class _HostedStore(_C.StoreClient):
    """A client that owns its server, for callers that keep only the client."""

    def __init__(self, server: _C.StoreServer) -> None:
        super().__init__(server.host, server.port)
        self._server = server
