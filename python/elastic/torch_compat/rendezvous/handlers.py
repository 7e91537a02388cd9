"""elastic's own handlers: with an endpoint, with static ranks, with a store that keeps the record.

All of them use one native object, which the first call that needs other nodes starts. Methods
other than ``next_rendezvous`` return at once, from messages that were received before.
"""

from __future__ import annotations

import logging
import sys
import weakref
from datetime import timedelta
from typing import Any, NamedTuple

from elastic import _C, _environment, _torch_bases
from elastic._plug_in import plug_in
from elastic.constants import COORDINATED, COORDINATOR_PORT, JOIN_TIMEOUT_S, KEEPERS
from elastic.errors import ConfigError, RendezvousClosed
from elastic.rendezvous import token
from elastic.rendezvous.keepers import backends
from elastic.rendezvous.keys import Keys, read_values
from elastic.text import split_endpoint, split_endpoints
from elastic.torch_compat.rendezvous.api import (
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    ServedRound,
)

logger = logging.getLogger(__name__)


class RendezvousTimeout:
    """How long the steps of a rendezvous may take. ``heartbeat`` is kept and has no effect."""

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self.join = _positive("join", join, JOIN_TIMEOUT_S)
        self.last_call = _positive("last_call", last_call, 30)
        self.close = _positive("close", close, 30)
        self.heartbeat = _positive("heartbeat", heartbeat, 5)


def _positive(name: str, given: timedelta | None, default: float) -> timedelta:
    if given is not None and given <= timedelta(0):
        raise ConfigError(f"the {name} timeout of a rendezvous must be positive")
    return timedelta(seconds=default) if given is None else given


class RendezvousSettings(NamedTuple):
    """The settings of a handler over a store."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    cas_backoff_max_seconds: float = 0.0


class DynamicRendezvousHandler(RendezvousHandler):
    """elastic's own handler, for every backend.

    A handler belongs to the process that first calls it; create it after a fork.
    """

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: Any,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: float | timedelta = 5,
        keep_alive_max_attempt: int = 3,
        cas_backoff_max_seconds: float = 0.0,
    ) -> DynamicRendezvousHandler:
        """A handler over a store that keeps the job's record, with torch's arguments.

        ``backend`` is any object with the members of a RendezvousBackend. ``store`` has no effect:
        each round has a new store, served by its rank 0; nor has ``cas_backoff_max_seconds``: one
        agent writes.
        """
        timeout = timeout or RendezvousTimeout()
        interval = keep_alive_interval
        if isinstance(interval, timedelta):
            interval = interval.total_seconds()
        made = create_handler(
            store,
            backend,
            RendezvousParameters(
                backend.name,
                "",
                run_id,
                min_nodes,
                max_nodes,
                local_addr,
                join_timeout=timeout.join.total_seconds(),
                last_call_timeout=timeout.last_call.total_seconds(),
                keep_alive_interval=interval,
                keep_alive_max_attempt=keep_alive_max_attempt,
            ),
        )
        settings = made.settings._replace(
            timeout=timeout, cas_backoff_max_seconds=cas_backoff_max_seconds
        )
        return cls(made.get_backend(), made.native_options, settings)

    def __init__(
        self, backend: str, options: _C.RendezvousOptions, settings: RendezvousSettings
    ) -> None:
        self._backend = backend
        self._options = options
        self._settings = settings
        self._client: _C.RendezvousClient | None = None

    @property
    def native_options(self) -> _C.RendezvousOptions:
        """The options with which a native agent joins with its own membership."""
        return self._options

    @property
    def settings(self) -> RendezvousSettings:
        return self._settings

    def get_backend(self) -> str:
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """True: the round's store is for its workers."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        found = self.next_round()
        where = RendezvousStoreInfo(found.master_addr, found.master_port)
        return ServedRound(found.group_rank, found.nodes, where)

    def next_round(self) -> _C.RendezvousRound:
        """Joins and waits like ``next_rendezvous``, and returns the native round."""
        client = self._started()
        _torch_bases.update()
        self._record("next_rendezvous", "joining a round")
        try:
            found = client.next_rendezvous()
        except Exception as error:
            self._record("next_rendezvous", f"no round: {error}", "FAILED")
            if not isinstance(error, RendezvousClosed):
                raise
            result = client.result
            if result is not None and result.outcome == _C.JobOutcome.SUCCEEDED:
                raise RendezvousGracefulExitError(str(error)) from None
            raise
        finally:
            for note in client.take_log_lines():
                logger.info("%s", note)
        logger.info(
            "round %d of %s: this node has rank %d of %d, the store is at %s:%d",
            found.round,
            self._settings.run_id,
            found.group_rank,
            found.nodes,
            found.master_addr,
            found.master_port,
        )
        text = f"joined round {found.round} as rank {found.group_rank} of {found.nodes}"
        self._record("next_rendezvous", text, rank=found.group_rank)
        return found

    def is_closed(self) -> bool:
        return self._client is not None and self._client.is_closed()

    def set_closed(self) -> None:
        self._started().set_closed()
        self._record("set_closed", "closed the rendezvous", "SUCCEEDED")

    def num_nodes_waiting(self) -> int:
        return 0 if self._client is None else self._client.waiting_nodes()

    def get_run_id(self) -> str:
        return self._settings.run_id

    def shutdown(self) -> bool:
        if self._client is None:
            return True
        self._client.set_closed()
        limit = self._settings.timeout.close.total_seconds()
        is_acknowledged = self._client.leave("the handler was shut down", limit)
        self._closing()
        self._client = None
        self._record("shutdown", "left the rendezvous", "SUCCEEDED")
        return is_acknowledged

    def _record(
        self, method: str, message: str, state: str = "RUNNING", rank: int | None = None
    ) -> None:
        """torch's event of a rendezvous. A program without elastic.events has no handler of it."""
        if "elastic.torch_compat.events" not in sys.modules:
            return
        from elastic.torch_compat import events

        with plug_in("event handler"):
            events.construct_and_record_rdzv_event(
                self._settings.run_id,
                message,
                events.NodeState(state),
                name=f"{type(self).__name__}.{method}",
                rank=rank,
            )

    def _started(self) -> _C.RendezvousClient:
        if self._client is None:
            self._client = _C.RendezvousClient(self._options, run_id=self._settings.run_id)
            # Closed at exit at the latest: a Python backend must not be called in finalization.
            self._closing = weakref.finalize(self, self._client.close)
        return self._client


def create_handler(
    store: Any, backend: Any, params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """A handler over a store, with the settings of ``params``."""
    return _handler(params, _keys(params), backend=backend)


def create(params: RendezvousParameters) -> RendezvousHandler:
    """The handler for one of elastic's own backends, by name."""
    keys = _keys(params)
    name = keys.backend_of(params.backend)
    if name in KEEPERS:
        state = backends.create(name, params.endpoint, params.run_id, params.config)
        return _handler(params, keys, backend=state)
    named, origin = params.endpoint or "localhost", "the rendezvous endpoint"
    if params.backend != "static":
        (host, number), *further = split_endpoints(named, origin, COORDINATOR_PORT)
        way: dict[str, Any] = {"further_endpoints": further, "is_host": keys.is_host}
        return _handler(params, keys, endpoint_host=host, endpoint_port=number, **way)
    host, port = split_endpoint(named, origin)
    if not port:
        raise ConfigError("with static the endpoint must be HOST:PORT, where node 0 listens")
    if keys.rank is None:
        raise ConfigError("with static every node needs the setting rank")
    way = {"is_host": keys.hosts(keys.rank), "static_ranks": True, "node_rank": keys.rank}
    return _handler(params, keys, endpoint_host=host, endpoint_port=int(port), **way)


def _keys(params: RendezvousParameters) -> Keys:
    """The settings, parsed as on the command line."""
    given = {key: str(value) for key, value in params.config.items() if value is not None}
    keys = read_values(given, "the rendezvous settings", params.backend, is_ours=True)
    for note in keys.notes:
        logger.info("%s", note)
    return keys


def check_settings(params: RendezvousParameters) -> None:
    """Raises ConfigError for settings that ``create`` would reject, without a handler."""
    if params.backend in (*COORDINATED, *KEEPERS):
        _keys(params)


def _handler(params: RendezvousParameters, keys: Keys, **way: Any) -> DynamicRendezvousHandler:
    environ = _environment.inherited()
    found = token.find(keys.parameters.get("token_file", ""), environ)
    token.check(found, params.run_id, environ)
    bounds = params.min_nodes, params.max_nodes
    options = keys.options(bounds, params.local_addr or "", found, **way)
    return of_options(params.backend, params.run_id, bounds, options, keys)


def of_options(
    backend: str, run_id: str, bounds: tuple[int, int], options: _C.RendezvousOptions, keys: Keys
) -> DynamicRendezvousHandler:
    """The handler that joins with these native options."""
    given = keys.parameters
    settings = RendezvousSettings(
        run_id,
        *bounds,
        RendezvousTimeout(
            join=_time(keys, "join_timeout"),
            last_call=_time(keys, "last_call_timeout"),
            close=_time(keys, "close_timeout"),
            heartbeat=_time(keys, "heartbeat_timeout"),
        ),
        _time(keys, "keep_alive_interval") or timedelta(seconds=5),
        int(given.get("keep_alive_max_attempt", 3)),
        float(given.get("cas_backoff_max_seconds", 0.0)),
    )
    return DynamicRendezvousHandler(backend, options, settings)


def _time(keys: Keys, name: str) -> timedelta | None:
    given = keys.timings.get(name, keys.parameters.get(name))
    return None if given is None else timedelta(seconds=float(given))
