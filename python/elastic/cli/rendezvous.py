"""The rendezvous configuration of a job of several nodes.

There are two kinds: an endpoint at which a coordinator listens (the backends ``c10d`` and
``static``), and a store that keeps the job's record and names the coordinator, through a backend
of ``elastic.rendezvous``.
"""

from __future__ import annotations

import os

from elastic.cli import nodes
from elastic.cli.command_line import CommandLine
from elastic.cli.config import NodeConfig, RendezvousConfig
from elastic.cli.values import integer, short
from elastic.constants import (
    COORDINATOR_PORT,
    KEEPERS,
    LOOPBACK,
    NO_RUN_ID,
    NODES_MAX,
    STATIC_PORT,
)
from elastic.errors import ConfigError
from elastic.rendezvous.keys import Keys, read_values
from elastic.text import is_loopback, split_endpoint, split_endpoints


def several(
    line: CommandLine,
    bounds: tuple[int, int],
    backend: str,
    keys: Keys | None,
    notes: list[str],
) -> NodeConfig:
    keys = keys or read_values({}, "", backend, is_ours=True)
    backend = keys.backend_of(backend)
    config = RendezvousConfig(
        backend=backend,
        min_nodes=bounds[0],
        max_nodes=bounds[1],
        keys=keys._replace(voter_ports=nodes.voter_ports(line, keys, backend)),
        is_host=keys.is_host,
        node_rank=_node_rank(line, keys, backend, bounds[1]),
        native=nodes.native_settings(line),
        token={name: text for name, text in keys.parameters.items() if name == "token_file"},
    )
    run_id = _common_run_id(line, backend)
    # Only a coordinator notices that the members of a round are lost, and so who is one too many.
    if run_id == NO_RUN_ID and backend == "c10d":
        config = config._replace(program=_program(line))
    master_port = nodes.master_port(line) or 0
    if backend == "static":
        host, port = _static_endpoint(line, bounds)
        is_host = keys.hosts(config.node_rank)
        config = config._replace(endpoint_host=host, endpoint_port=port, is_host=is_host)
        master_port = port
    elif backend == "c10d":
        (host, port), *further = _coordinator_endpoints(line)
        config = config._replace(
            endpoint_host=host, endpoint_port=port, further_endpoints=tuple(further)
        )
        if master_port in (port, *(other for _, other in further)):
            notes.append(
                f"{line.origin('master-port')} is {master_port}, the port of the rendezvous "
                "endpoint, where the coordinator listens: the workers' store uses a free port, "
                "and workers get it as MASTER_PORT"
            )
            master_port = 0
    else:
        config = config._replace(store=_store(line, backend))
    if backend != "static" and "master-addr" in line.values:
        notes.append(
            f"{line.origin('master-addr')} has no effect with {backend}: MASTER_ADDR is the "
            "address of the node with rank 0"
        )
    if is_loopback(config.endpoint_host):
        line.warnings.append(_loopback_warning(config.endpoint_host, bounds[0]))
    ports = nodes.worker_ports(line, master_port)
    local_addr = short(line, "local-addr")
    return NodeConfig(config, run_id, local_addr, master_port, ports, notes)


def _loopback_warning(host: str, least: int) -> str:
    """A warning: agents of several hosts cannot form a job at a loopback address."""
    effect = "each trains on its own" if least == 1 else "they cannot join"
    return (
        f"the rendezvous endpoint {host} is a loopback address: if the nodes run on several hosts, "
        f"{effect}. Give a host name that all nodes resolve"
    )


def _static_endpoint(line: CommandLine, bounds: tuple[int, int]) -> tuple[str, int]:
    """Node 0's address, from --rdzv-endpoint or from --master-addr and --master-port."""
    least, most = bounds
    if least != most:
        raise ConfigError(
            f"{line.origin('nnodes')} is {least}:{most}, but with the static backend the number of "
            "nodes is fixed; add --rdzv-backend=c10d and --rdzv-endpoint"
        )
    hosts: dict[str, str] = {}
    ports: dict[int, str] = {}
    if line.text("rdzv-endpoint"):
        origin = line.origin("rdzv-endpoint")
        host, port = split_endpoint(line.text("rdzv-endpoint"), origin)
        hosts[host] = origin
        if port:
            ports[int(port)] = origin
    if "master-addr" in line.values or not hosts:
        address = line.text("master-addr")
        if not address or "master-addr" not in line.values:
            raise ConfigError(
                f"{line.origin('nnodes')} is {line.text('nnodes')}, but the address of node 0 is "
                "missing: add --master-addr=HOST, or --rdzv-backend=c10d and --rdzv-endpoint=HOST; "
                f"HOST is the same on every node ({LOOPBACK} if all nodes run on this host)"
            )
        if address.startswith("[") and address.endswith("]"):
            address = address[1:-1]
        hosts.setdefault(address, line.origin("master-addr"))
    if (given := nodes.master_port(line)) is not None:
        ports[given] = line.origin("master-port")
    nodes.check_equal(hosts, "addresses")
    nodes.check_equal(ports, "ports")
    port_number = next(iter(ports), STATIC_PORT)
    if port_number == 0:
        raise ConfigError(f"{ports[0]}: the other nodes need a given port, not 0")
    return next(iter(hosts)), port_number


def _coordinator_endpoints(line: CommandLine) -> list[tuple[str, int]]:
    origin, endpoint = line.origin("rdzv-endpoint"), line.text("rdzv-endpoint").strip()
    if not endpoint:
        raise ConfigError(
            f"{line.origin('nnodes')} is {line.text('nnodes')}: add {origin}=HOST[:PORT], the "
            "same on every node"
        )
    found = split_endpoints(endpoint, origin, COORDINATOR_PORT)
    if not all(port for _, port in found):
        raise ConfigError(f"{origin} is {endpoint!r}: the other nodes need a given port, not 0")
    return found


def _store(line: CommandLine, backend: str) -> str:
    endpoint = line.text("rdzv-endpoint").strip()
    if not endpoint and backend in KEEPERS:
        what = "a file that all nodes see" if backend == "file" else "HOST[:PORT] of the server"
        raise ConfigError(f"with {backend} {line.origin('rdzv-endpoint')} must name {what}")
    return endpoint or backend


def _common_run_id(line: CommandLine, backend: str) -> str:
    """The run id for all nodes; torchrun's default if the user gave none."""
    if given := nodes.run_id(line):
        return given
    if "rdzv-id" in line.values:
        raise ConfigError(f"{line.origin('rdzv-id')} is empty: give every node the same run id")
    if backend != "static":  # there the endpoint is this job's own
        line.warnings.append(
            "this job has no --rdzv-id: any other job without one at this endpoint would join it. "
            "Give each job its own"
        )
    return NO_RUN_ID


def _program(line: CommandLine) -> str:
    """The program's name and a checksum of it and its arguments, which may contain secrets."""
    from zlib import crc32

    name = os.path.basename(line.program)
    words = "\0".join((name, *line.arguments)).encode(errors="surrogateescape")
    return f"{name.encode(errors='replace').decode()} ({crc32(words):08x})"


def _node_rank(line: CommandLine, keys: Keys, backend: str, most: int) -> int:
    if backend != "static":
        if keys.rank is not None:
            raise ConfigError(
                f"{line.origin('rdzv-conf')}: rank needs the static backend; use --node-rank "
                "for a preferred rank"
            )
        given = "node-rank" in line.values
        return integer(line, "node-rank", 0, NODES_MAX - 1) if given else -1
    rank, origin = integer(line, "node-rank", 0, NODES_MAX - 1), line.origin("node-rank")
    if keys.rank is not None:
        if "node-rank" in line.values and keys.rank != rank:
            raise ConfigError(
                f"{origin} and {line.origin('rdzv-conf')}: rank name different ranks: "
                f"{rank} and {keys.rank}"
            )
        rank, origin = keys.rank, f"{line.origin('rdzv-conf')}: rank"
    if rank >= most:
        raise ConfigError(f"{origin} is {rank}: {most} nodes have the ranks 0 to {most - 1}")
    return rank
