"""The text of ``--dry-run``: the checked settings of a job, as it would be started here."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic.agent.server.api import commands
from elastic.multiprocessing.logs import Std
from elastic.text import duration, format_ranges, member, plural

if TYPE_CHECKING:
    from elastic.cli.config import JobConfig, RendezvousConfig


def text(job: JobConfig, environ: Mapping[str, str]) -> str:
    """One fact per line; ``environ`` is the launcher's environment."""
    facts = [*_workers(job, environ), *_nodes(job), *_failures(job), *_output(job)]
    facts += [("message", sentence) for _, sentence in job.notes]
    return "".join(f"{label + ':':<20}{value}\n" for label, value in facts)


def _workers(job: JobConfig, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    spec = job.spec
    yield "workers", f"{spec.local_world_size} on this node, role {spec.role}"
    shown = [shlex.join(words) for words in commands(spec, None)]
    if len(set(shown)) == 1:
        yield "command", shown[0]
    else:
        yield from ((f"command of {rank}", command) for rank, command in enumerate(shown))
    for rank, cpus in enumerate(job.worker_cpus):
        if cpus:
            yield f"CPUs of {rank}", format_ranges(cpus)
    if job.warm_template:
        modules = job.warm_modules or "torch and the modules of the script"
        yield "warm workers", f"forked from a process that imports {modules}"
    if spec.virtual_local_rank:
        yield "GPUs", "each worker sees one, as device 0"
    for name, value in job.environment.items():
        if environ.get(name) != value:
            yield "variable", f"{name}={value}"


def _nodes(job: JobConfig) -> Iterator[tuple[str, str]]:
    yield "run id", job.spec.job_id()
    config = job.rendezvous
    if config is None:
        yield "nodes", "1, without a rendezvous"
        yield "MASTER_ADDR", job.local_addr
    else:
        least, most = config.min_nodes, config.max_nodes
        yield "nodes", str(most) if least == most else f"{least} to {most}"
        yield "rendezvous", f"{config.backend} at {config.endpoint or config.store}"
        if not config.store:
            yield "coordinator", _host(config)
        if config.node_rank >= 0:
            kind = "node rank" if config.backend == "static" else "preferred node rank"
            yield kind, str(config.node_rank)
        if topology := config.native["topology"]:
            yield "topology", topology
        for key, value in config.keys.timings.items():
            yield key, duration(value)
        yield "node address", job.local_addr or "the address of its connection to the rendezvous"
        yield "after a node loss", config.native["on_loss"]
        if command := config.native["on_exclude"]:
            yield "for excluded hosts", command
    first, last = job.native["worker_ports"]
    ports = f"a free one from {first} to {last} in each round" if last else "free in each round"
    yield "MASTER_PORT", str(job.spec.master_port or ports)


def _host(config: RendezvousConfig) -> str:
    if config.is_host is None:
        return "in this agent if the endpoint is an address of this host"
    return "in this agent" if config.is_host else "in another agent"


def _rules(job: JobConfig) -> Iterator[tuple[str, str]]:
    """What follows a failure: core's own words for what it decides."""
    from elastic import _C
    from elastic.rendezvous.native import node_options

    config, native = job.rendezvous, job.native
    nodes: dict[str, Any] = {}
    if config is not None:
        nodes = {"bounds": (config.min_nodes, config.max_nodes), "on_loss": config.loss_policy()}
    first, rules, defaults = _C.describe_failure_rules(
        _C.AgentOptions(
            [],
            env={},
            rendezvous=node_options(failure_policy=job.failure_policy, **nodes),
            max_restarts=job.spec.max_restarts,
            hang_action=member(_C.HangAction, native["hang_action"], "--hang-action"),
            bad_node_codes=native["bad_node_codes"],
            no_restart_codes=native["no_restart_codes"],
        )
    )
    yield from (("before the rules", rule) for rule in first)
    if job.policy_function:
        rules.append(f"worker or hang: what the function {job.policy_function} says, if anything")
    for number, rule in enumerate(rules + defaults, 1):
        yield f"failure rule {number}", rule


def _failures(job: JobConfig) -> Iterator[tuple[str, str]]:
    native = job.native
    yield "restarts", str(job.spec.max_restarts)
    if job.spec.max_restarts:
        yield "restart backoff", duration(native["restart_backoff"])
    yield from _rules(job)
    if job.stop_without_progress:
        rounds = plural(job.stop_without_progress, "round")
        yield "without progress", f"stop after {rounds} that did not pass the best step"
    for number, command in enumerate(native["node_checks"], 1):
        yield f"node check {number}", command
    if native["node_checks"]:
        yield "node check timeout", duration(native["node_check_timeout"])
    yield "shutdown timeout", duration(job.shutdown_timeout)
    yield "failure grace", duration(native.get("failure_grace", job.shutdown_timeout))
    if native["inplace_grace"] is not None:
        yield "when the members change", f"in place, within {duration(native['inplace_grace'])}"
    if native["inplace_prepare"] is not None:
        limit = duration(native["inplace_prepare"])
        yield "before this node joins", f"the workers start, and may take {limit}"
    yield "start timeout", duration(native["start_timeout"])
    if "exit_barrier_timeout" in native:
        yield "exit barrier", duration(native["exit_barrier_timeout"])
    yield "signals that stop", f"{_names(job.signals)} (scope {native['stop_scope']})"
    if job.drain_signal:
        limit = duration(job.drain_timeout)
        yield "stop at a step", f"after {_names([job.drain_signal])}, within {limit}"
    if job.forwarded_signals:
        yield "forwarded signals", _names(job.forwarded_signals)


def _output(job: JobConfig) -> Iterator[tuple[str, str]]:
    logs = job.logs
    yield "log directory", logs.log_dir or "none"
    for rank in range(job.spec.local_world_size):
        targets = [
            f"{name} {logs.target(rank, stream)}"
            for name, stream in (("stdout", Std.OUT), ("stderr", Std.ERR))
            if logs.target(rank, stream) != "inherit"
        ]
        if targets:
            yield f"output of {rank}", ", ".join(targets)
    if job.spec.event_log_handler != "null":
        yield "events", job.spec.event_log_handler


def _names(numbers: Sequence[int]) -> str:
    return ", ".join(signal.Signals(number).name for number in numbers) or "none"
