"""The keys of ``--rdzv-conf``: elastic's, and torch's, some of which only log that they are unused.

With elastic's backends an unknown key is an error; a third-party backend receives all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic.constants import KEEPERS
from elastic.errors import ConfigError
from elastic.text import is_number, port_range, seconds, split_endpoint, truth

if TYPE_CHECKING:
    from elastic import _C

# The job's timings, in seconds. With a value of 0 those in _POSITIVE would end every job at once.
_TIMINGS = (
    "join_timeout", "last_call_timeout", "settle", "shrink_delay", "node_timeout",
    "reconnect_grace", "store_grace",
)  # fmt: skip
_POSITIVE = ("join_timeout", "node_timeout", "timeout")

# In torch a node is dead after interval * attempts without a heartbeat: the same as node_timeout.
_KEEP_ALIVE = {"keep_alive_interval": 5.0, "keep_alive_max_attempt": 3.0}

# Timeouts that torch's handlers need because they poll, or read with one request at a time.
_WITHOUT_EFFECT = {
    "close_timeout": "closing a job is one message",
    "heartbeat_timeout": "no call waits for a heartbeat; a node is lost after node_timeout",
    "read_timeout": "join_timeout limits the attempts to reach the endpoint",
    "cas_backoff_max_seconds": "one agent writes; the others hold sessions with it",
}

_ETCD = ("protocol", "ssl_cert", "ssl_cert_key", "ca_cert", "cert", "key", "cacert", "etcd_prefix")
_OTHERS = (
    "timeout", "is_host", "store_type", "rank", "voters", "voter_port_range", "token_file",
    "witness",
)  # fmt: skip

# Keys for a job that is found at an endpoint.
_VOTERS = ("voters", "witness", "is_host")

KNOWN = (*_TIMINGS, *_KEEP_ALIVE, *_OTHERS, *_WITHOUT_EFFECT, *_ETCD)


class Keys(NamedTuple):
    """The settings of ``--rdzv-conf``, by kind."""

    timings: dict[str, float]  # by the names of _TIMINGS; only those that were given
    is_host: bool | None = None
    rank: int | None = None
    store_type: str = "tcp"
    voters: int = 0  # how many nodes keep the job's record; 0: by the number of hosts
    voter_ports: tuple[int, int] = (0, 0)  # first and last; (0, 0): any
    witness: tuple[str, int] | None = None  # a voter that runs no node
    parameters: Mapping[str, str] = {}  # all keys as text, for backends with their own keys
    notes: tuple[str, ...] = ()  # messages about keys without effect

    def backend_of(self, name: str) -> str:
        """The backend of a name: torch spells ``file`` as ``c10d`` with ``store_type=file``."""
        return "file" if name == "c10d" and self.store_type == "file" else name

    def options(
        self, bounds: tuple[int, int], local_addr: str, token: Mapping[str, Any], **way: Any
    ) -> _C.RendezvousOptions:
        """The native options of a node. ``way``: how it finds the others, and its own part."""
        from elastic.rendezvous.native import node_options

        timings: dict[str, Any] = dict(self.timings)
        return node_options(
            bounds,
            local_addr,
            voters=self.voters,
            voter_ports=self.voter_ports,
            witness=self.witness,
            **timings,
            **token,
            **way,
        )

    def hosts(self, rank: int) -> bool:
        """Whether the node of this static rank hosts the coordinator."""
        return rank == 0 if self.is_host is None else self.is_host


def read(text: str, origin: str, backend: str, is_ours: bool) -> Keys:
    """Reads ``KEY=VALUE,...`` for a backend; the last value of a repeated key is used."""
    return read_values(split(text, origin), origin, backend, is_ours)


def read_values(given: Mapping[str, str], origin: str, backend: str, is_ours: bool) -> Keys:
    """Reads the keys and values that were given for a backend."""
    if is_ours:
        for key in given:
            if key not in KNOWN:
                raise ConfigError(f"{origin}: there is no key {key!r}{_nearest(key)}")
    notes = [
        f"{key} in {origin} has no effect: {why}"
        for key, why in _WITHOUT_EFFECT.items()
        if key in given and is_ours
    ]
    if backend not in ("etcd", "etcd-v2") and is_ours:
        notes += [f"{key} in {origin} applies to etcd only" for key in _ETCD if key in given]
    if backend in KEEPERS:
        notes += [
            f"{key} in {origin} has no effect: with {backend} a store keeps the job's record"
            for key in _VOTERS
            if key in given
        ]
    for key in _WITHOUT_EFFECT:
        if key in given:
            is_positive = key != "cas_backoff_max_seconds"
            seconds(given[key], f"{origin}: {key}", positive=is_positive)
    timings = {
        key: seconds(given[key], f"{origin}: {key}", positive=key in _POSITIVE)
        for key in _TIMINGS
        if key in given
    }
    _add_keep_alive(timings, given, origin)
    _add_timeout(timings, given, origin, backend, notes)
    voters = _voters(given.get("voters", "5" if "witness" in given else "auto"), origin)
    return Keys(
        timings=timings,
        is_host=truth(given["is_host"], f"{origin}: is_host") if "is_host" in given else None,
        rank=_rank(given["rank"], f"{origin}: rank") if "rank" in given else None,
        store_type=store_type(given.get("store_type", "tcp"), origin),
        voters=1 if backend == "static" else voters,
        witness=_witness(given, origin),
        voter_ports=port_range(given.get("voter_port_range", ""), f"{origin}: voter_port_range"),
        parameters=given,
        notes=tuple(notes),
    )


def split(text: str, origin: str) -> dict[str, str]:
    """The keys and values of ``KEY=VALUE,...``, unchecked."""
    given = {}
    for item in text.split(",") if text else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise ConfigError(f"{origin}: {item!r} is not of the form KEY=VALUE")
        given[key] = value
    return given


def _nearest(key: str) -> str:
    import difflib  # needed after a typo only

    close = difflib.get_close_matches(key, KNOWN, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(KNOWN)}"


def _add_keep_alive(timings: dict[str, float], given: Mapping[str, str], origin: str) -> None:
    named = [key for key in _KEEP_ALIVE if key in given]
    if not named:
        return
    if "node_timeout" in timings:
        raise ConfigError(
            f"{origin}: node_timeout and {named[0]} both set the time after which a silent node "
            "is lost; give one of them"
        )
    timeout = 1.0
    for key, default in _KEEP_ALIVE.items():
        text = given.get(key)
        timeout *= default if text is None else seconds(text, f"{origin}: {key}", positive=True)
    timings["node_timeout"] = timeout


def _add_timeout(
    timings: dict[str, float],
    given: Mapping[str, str],
    origin: str,
    backend: str,
    notes: list[str],
) -> None:
    if "timeout" not in given:
        return
    value = seconds(given["timeout"], f"{origin}: timeout", positive=True)
    if backend not in ("static", "etcd"):
        notes.append(f"timeout in {origin} has no effect with {backend}; use join_timeout")
    elif timings.setdefault("join_timeout", value) != value:
        raise ConfigError(
            f"{origin}: timeout and join_timeout both set the limit for nodes to join; "
            "give one of them"
        )


def _rank(text: str, origin: str) -> int:
    if not is_number(text):
        raise ConfigError(f"{origin} is {text!r}: expected a node's rank, from 0")
    return int(text)


def _voters(text: str, origin: str) -> int:
    if text == "auto":
        return 0
    if text not in ("1", "3", "5"):
        raise ConfigError(f"{origin}: voters is {text!r}: expected 1, 3, 5 or auto")
    return int(text)


def _witness(given: Mapping[str, str], origin: str) -> tuple[str, int] | None:
    if "witness" not in given:
        return None
    if given.get("voters") == "1":
        raise ConfigError(
            f"{origin}: voters=1 means that no other node votes, so witness has no effect"
        )
    host, port = split_endpoint(given["witness"], f"{origin}: witness")
    if not port:
        raise ConfigError(f"{origin}: witness is {given['witness']!r}: expected HOST:PORT")
    return host, int(port)


def store_type(text: str, origin: str) -> str:
    if text.lower() not in ("tcp", "file"):
        raise ConfigError(f"{origin}: store_type is {text!r}: expected tcp or file")
    return text.lower()
