"""The options about nodes, and the configuration of a job of one node.

``elastic.cli.rendezvous`` has the configuration of several nodes. Options that contradict the
number of nodes are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elastic.cli.command_line import CommandLine
from elastic.cli.config import NodeConfig
from elastic.cli.options import OPTIONS
from elastic.cli.values import integer, short
from elastic.constants import COORDINATED, JOIN_TIMEOUT_S, KEEPERS, LOOPBACK, NODES_MAX, PORT_MAX
from elastic.errors import ConfigError
from elastic.text import (
    UnresolvedHost,
    is_number,
    is_only_node,
    own_address,
    port_range,
    split_endpoint,
)

if TYPE_CHECKING:
    from elastic.rendezvous.keys import Keys


def bounds(line: CommandLine) -> tuple[int, int]:
    origin, text = line.origin("nnodes"), line.text("nnodes")
    least, colon, most = (part.strip() for part in text.partition(":"))
    most = most if colon else least
    if not is_number(least) or not is_number(most) or not 0 < int(least) <= int(most):
        raise ConfigError(f"{origin} is {text!r}: expected N or MIN:MAX, with 1 <= MIN <= MAX")
    if int(most) > NODES_MAX:
        raise ConfigError(f"{origin} is {text!r}: a job has at most {NODES_MAX} nodes")
    return int(least), int(most)


def rendezvous_backend(line: CommandLine) -> str:
    backend = line.text("rdzv-backend").strip()
    if not backend:
        raise ConfigError(f"{line.origin('rdzv-backend')} is empty")
    # The name by which torchrun finds elastic's handler as a plug-in: here it is the native one.
    return "c10d" if line.switch("standalone") or backend == "elastic" else backend


def rendezvous_keys(line: CommandLine, backend: str) -> Keys | None:
    """The settings of --rdzv-conf; None if it is not given."""
    text = line.text("rdzv-conf")
    if not text:
        return None
    from elastic.rendezvous import keys

    is_ours = backend in (*COORDINATED, *KEEPERS)
    return keys.read(text, line.origin("rdzv-conf"), backend, is_ours=is_ours)


def join_timeout(line: CommandLine) -> float:
    keys = rendezvous_keys(line, rendezvous_backend(line))
    return keys.timings.get("join_timeout", JOIN_TIMEOUT_S) if keys else JOIN_TIMEOUT_S


def is_single(line: CommandLine, most: int, backend: str, keys: Keys | None) -> bool:
    """Whether no other node can join the job, so that no rendezvous is needed."""
    if line.switch("standalone"):
        if most > 1:
            raise ConfigError(
                f"{line.origin('standalone')} asks for a job of one node, but "
                f"{line.origin('nnodes')} is {line.text('nnodes')}"
            )
        return True
    if most > 1 or (keys and keys.is_host is False):
        return False
    endpoint, store_type = line.text("rdzv-endpoint"), keys.store_type if keys else ""
    return is_only_node(backend, endpoint, store_type, line.origin("rdzv-endpoint"))


def single(line: CommandLine, keys: Keys | None, notes: list[str]) -> NodeConfig:
    """The configuration of a job of one node."""
    _check_only_rank(line, keys)
    _check_endpoint_of_one(line)
    native_settings(line)
    if line.text("on-exclude"):
        line.warnings.append(
            f"{line.origin('on-exclude')} has no effect: a job of one node excludes no host"
        )
    origin = line.origin("voter-port-range")
    if port_range(line.text("voter-port-range"), origin) != (0, 0):
        line.warnings.append(f"{origin} has no effect: a job of one node has no voters")
    try:
        local_addr, port = _master_of_one(line)
    except UnresolvedHost as error:
        error.timeout = join_timeout(line)
        raise
    return NodeConfig(None, run_id(line), local_addr, port, worker_ports(line, port), notes)


def _check_only_rank(line: CommandLine, keys: Keys | None) -> None:
    for given, origin in (
        (integer(line, "node-rank", 0, 2**31 - 1), line.origin("node-rank")),
        ((keys and keys.rank) or 0, f"{line.origin('rdzv-conf')}: rank"),
    ):
        if given != 0:
            line.warnings.append(f"{origin} is {given}: ignored, since the only node has rank 0")


def _check_endpoint_of_one(line: CommandLine) -> None:
    endpoint = line.text("rdzv-endpoint")
    if not endpoint or rendezvous_backend(line) == "static" or line.switch("standalone"):
        return
    origin = line.origin("rdzv-endpoint")
    if split_endpoint(endpoint.partition(",")[0], origin)[1] != "0":  # any port: none is wanted
        line.warnings.append(
            f"{origin} is {endpoint!r}: ignored, since a job of one node (--nnodes=1) needs no "
            "rendezvous"
        )


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
    check_equal(addresses, "addresses")
    ports = {}
    if (given := master_port(line)) is not None:
        ports[given] = line.origin("master-port")
    if port:
        ports[int(port)] = line.origin("rdzv-endpoint")
    check_equal(ports, "ports")
    return next(iter(addresses), LOOPBACK), next(iter(ports), 0)


def master_port(line: CommandLine) -> int | None:
    return integer(line, "master-port", 0, PORT_MAX) if line.text("master-port") else None


def check_equal(origins: Mapping[Any, str], what: str) -> None:
    """Raises ConfigError for several values, each with the option that names it."""
    if len(origins) > 1:
        raise ConfigError(
            f"{' and '.join(origins.values())} name different {what}: "
            f"{' and '.join(map(str, origins))}"
        )


def run_id(line: CommandLine) -> str:
    given = short(line, "rdzv-id")
    if "/" in given:
        raise ConfigError(
            f"{line.origin('rdzv-id')} is {given!r}: '/' cannot be part of a file name"
        )
    return given


def native_settings(line: CommandLine) -> dict[str, Any]:
    """The fields of ``_C.RendezvousOptions`` that options set alone."""
    return {
        option.rendezvous: value
        for option in OPTIONS
        if option.rendezvous
        and option.read is not None
        and (value := option.read(line, option.name)) is not None
    }


def worker_ports(line: CommandLine, port: int) -> tuple[int, int]:
    origin = line.origin("worker-port-range")
    ports = port_range(line.text("worker-port-range"), origin)
    if ports != (0, 0) and port != 0:
        raise ConfigError(f"{origin} has no effect: MASTER_PORT is {port}")
    return ports


def voter_ports(line: CommandLine, keys: Keys, backend: str) -> tuple[int, int]:
    origin = line.origin("voter-port-range")
    ports = port_range(line.text("voter-port-range"), origin)
    if ports == (0, 0):
        return keys.voter_ports
    if backend == "static":
        raise ConfigError(f"{origin} has no effect with {backend}: its nodes have no voter ports")
    if keys.voter_ports not in ((0, 0), ports):
        raise ConfigError(f"{origin} and voter_port_range in --rdzv-conf differ: give one of them")
    return ports
