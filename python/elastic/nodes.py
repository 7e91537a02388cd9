"""How many nodes a job has, and whether this one meets any: the options about nodes.

A job of one node that nobody can join meets nobody, and is settled here, quickly. The others go on
to ``elastic.rendezvous_config``. What would give a job of another shape than the one that was asked
for is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from elastic.errors import ConfigError
from elastic.options import CommandLine
from elastic.values import PORT_MAX, integer, is_loopback, is_number, own_address, split_endpoint

if TYPE_CHECKING:
    from elastic.rendezvous_config import RendezvousConfig
    from elastic.rendezvous_keys import Keys

LOOPBACK = "127.0.0.1"
NODES_MAX = 100_000  # kNodesMax
TEXT_BYTES_MAX = 255  # kNodeTextBytesMax

# Backends whose nodes meet at a coordinator, and those of ours that keep a shared state.
COORDINATED = ("static", "c10d")
SHARED = ("file", "tcpstore", "etcd", "etcd-v2")


class Place:
    """What the options say about nodes, all in all."""

    __slots__ = ("local_addr", "master_port", "notes", "rendezvous", "run_id", "worker_ports")

    def __init__(
        self,
        rendezvous: RendezvousConfig | None,
        run_id: str,
        local_addr: str,
        master_port: int,
        worker_ports: tuple[int, int],
        notes: list[tuple[bool, str]],
    ) -> None:
        self.rendezvous = rendezvous  # None: a job of one node, which meets nobody
        self.run_id = run_id  # "": one is to be made up
        self.local_addr = local_addr  # numeric on one node; "": what the rendezvous sees
        self.master_port = master_port  # 0: a free one in each round
        self.worker_ports = worker_ports
        # For the log, with whether a user should hear of it although nothing is wrong yet.
        self.notes = notes


def place(line: CommandLine) -> Place:
    least, most = _nodes(line)
    backend = _backend(line)
    keys = _keys(line, backend)
    notes = [(False, note) for note in keys.notes] if keys else []
    if not _is_alone(line, most, backend, keys):
        from elastic import rendezvous_config

        return rendezvous_config.among_others(line, (least, most), backend, keys, notes)
    _check_only_rank(line, keys)
    on_node_loss(line)
    membership_changes(line)
    local_addr, port = _master_of_one(line)
    return Place(None, run_id(line), local_addr, port, worker_ports(line, port), notes)


def _nodes(line: CommandLine) -> tuple[int, int]:
    origin, text = line.origin("nnodes"), line.text("nnodes")
    least, colon, most = (part.strip() for part in text.partition(":"))
    most = most if colon else least
    if not is_number(least) or not is_number(most) or not 0 < int(least) <= int(most):
        raise ConfigError(f"{origin} is {text!r}: expected N or MIN:MAX, with 1 <= MIN <= MAX")
    if int(most) > NODES_MAX:
        raise ConfigError(f"{origin} is {text!r}: a job has at most {NODES_MAX} nodes")
    return int(least), int(most)


def _backend(line: CommandLine) -> str:
    backend = line.text("rdzv-backend").strip()
    if not backend:
        raise ConfigError(f"{line.origin('rdzv-backend')} is empty")
    return "c10d" if line.switch("standalone") else backend


def _keys(line: CommandLine, backend: str) -> Keys | None:
    """The settings of --rdzv-conf, if there are any."""
    text = line.text("rdzv-conf")
    if not text:
        return None
    from elastic import rendezvous_keys

    is_ours = backend in (*COORDINATED, *SHARED)
    return rendezvous_keys.read(text, line.origin("rdzv-conf"), backend, is_ours=is_ours)


def _is_alone(line: CommandLine, most: int, backend: str, keys: Keys | None) -> bool:
    """Whether nobody else can take part, so that nobody need be met."""
    if line.switch("standalone"):
        if most > 1:
            raise ConfigError(
                f"{line.origin('standalone')} asks for a job of one node, but "
                f"{line.origin('nnodes')} is {line.text('nnodes')}"
            )
        return True
    if most > 1 or backend not in COORDINATED or (keys and keys.is_host is False):
        return False
    endpoint = line.text("rdzv-endpoint")
    if backend == "static" or not endpoint:
        return True
    # Another host's agent may be a spare for the only node, one on this machine serves no purpose.
    host, port = split_endpoint(endpoint, line.origin("rdzv-endpoint"))
    return is_loopback(host) or port == "0"


def _check_only_rank(line: CommandLine, keys: Keys | None) -> None:
    for given, origin in (
        (integer(line, "node-rank", 0, 2**31 - 1), line.origin("node-rank")),
        ((keys and keys.rank) or 0, f"{line.origin('rdzv-conf')}: rank"),
    ):
        if given != 0:
            raise ConfigError(f"{origin} is {given}: the only node has rank 0")


def _master_of_one(line: CommandLine) -> tuple[str, int]:
    """Address and port of the workers' store, from the four options that may name them."""
    port = ""
    named = [
        (line.text(name), line.origin(name))
        for name in ("master-addr", "local-addr")
        if name in line.values and line.text(name)
    ]
    is_static = line.text("rdzv-backend") == "static" and not line.switch("standalone")
    if line.text("rdzv-endpoint") and is_static:
        origin = line.origin("rdzv-endpoint")
        host, port = split_endpoint(line.text("rdzv-endpoint"), origin)
        named.append((host, origin))
    addresses = {own_address(address, where): where for address, where in named}
    if len(addresses) > 1:
        raise ConfigError(
            f"{' and '.join(addresses.values())} name different addresses: "
            f"{' and '.join(addresses)}"
        )
    ports = {}
    if (given := master_port(line)) is not None:
        ports[given] = line.origin("master-port")
    if port:
        ports[int(port)] = line.origin("rdzv-endpoint")
    agree_on_port(ports)
    return next(iter(addresses), LOOPBACK), next(iter(ports), 0)


def master_port(line: CommandLine) -> int | None:
    return integer(line, "master-port", 0, PORT_MAX) if line.text("master-port") else None


def agree_on_port(ports: Mapping[int, str]) -> None:
    if len(ports) > 1:
        raise ConfigError(
            f"{' and '.join(ports.values())} name different ports: {' and '.join(map(str, ports))}"
        )


def run_id(line: CommandLine) -> str:
    given = short(line, "rdzv-id")
    if "/" in given or "\0" in given:
        raise ConfigError(
            f"{line.origin('rdzv-id')} is {given!r}: '/' cannot be part of a file name"
        )
    return given


def on_node_loss(line: CommandLine) -> str:
    what = line.text("on-node-loss")
    if what not in ("replace", "fail"):
        raise ConfigError(f"{line.origin('on-node-loss')} is {what!r}: expected replace or fail")
    return what


def membership_changes(line: CommandLine) -> int:
    given = line.text("max-membership-changes")
    return integer(line, "max-membership-changes", 0, 2**31 - 1) if given else -1


def worker_ports(line: CommandLine, port: int) -> tuple[int, int]:
    origin, text = line.origin("worker-port-range"), line.text("worker-port-range")
    if not text:
        return 0, 0
    first, _, last = (part.strip() for part in text.partition(":"))
    numbers = is_number(first) and is_number(last)
    if not numbers or not 0 < int(first) <= int(last) <= PORT_MAX:
        raise ConfigError(
            f"{origin} is {text!r}: expected FIRST:LAST, two ports from 1 to {PORT_MAX}"
        )
    if port != 0:
        raise ConfigError(f"{origin} leaves nothing to choose: MASTER_PORT is {port}")
    return int(first), int(last)


def short(line: CommandLine, name: str) -> str:
    text = line.text(name)
    if len(text.encode(errors="surrogateescape")) > TEXT_BYTES_MAX:
        raise ConfigError(f"{line.origin(name)} is longer than {TEXT_BYTES_MAX} bytes")
    return text
