"""Converts command line and environment to one checked configuration.

Only this module reads the environment. A flag takes precedence over its ``PET_*`` variable, and
the variable over the default. An invalid setting, or one that would silently have no effect, is a
``ConfigError`` of one sentence.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic import _environment
from elastic._host import devices
from elastic.agent.server.api import WorkerSpec
from elastic.cli import command_line, entrypoint, nodes, output
from elastic.cli.command_line import CommandLine
from elastic.cli.config import JobConfig, NodeConfig
from elastic.cli.options import BY_NAME, OPTIONS, USE_ENV
from elastic.cli.values import choice, integer, short
from elastic.constants import (
    DEFAULT_DRAIN_TIMEOUT_S,
    DEFAULT_INPLACE_GRACE_S,
    DEFAULT_ROLE,
    ERROR_FILE_VARIABLE,
    LOG_LEVEL_VARIABLE,
    LOG_LEVELS,
    NOTICE,
    PORT_MAX,
    SIGNALS_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
)
from elastic.errors import ConfigError, ElasticError
from elastic.multiprocessing.logs import LogOptions
from elastic.text import (
    UnresolvedHost,
    format_ranges,
    seconds,
    shutdown_timeout,
    signal_numbers,
)

if TYPE_CHECKING:
    from elastic.cli.config import RendezvousConfig
    from elastic.cli.failure_policy import Policy
    from elastic.torch_compat.rendezvous.api import RendezvousHandler


def configure(line: CommandLine, environ: Mapping[str, str]) -> JobConfig:
    """Checks all settings; counts devices if ``--nproc-per-node`` requires it.

    It may be called again with the same command line, which it does not change.
    """
    line = line._replace(warnings=list(line.warnings))
    notes: list[tuple[int, str]] = []
    if any(value.text.startswith("auto") for value in line.values.values()):
        from elastic.cli import cluster

        line, sentence = cluster.resolve(line, environ)
        if sentence:
            notes.append((NOTICE, sentence))
    network_interface = ""
    if line.text("iface") or line.text("subnet"):
        from elastic.cli import interface

        try:
            line, network_interface = interface.resolve(line)
        except UnresolvedHost as error:
            error.timeout = nodes.join_timeout(line)
            raise
    node = _with_handler(_with_token(line, environ, _nodes(line)))
    policy, policy_settings, native = _failure_rules(line, _native_settings(line, node, environ))
    if policy_settings and node.rendezvous is not None:
        node = node._replace(rendezvous=node.rendezvous._replace(failure_policy=policy_settings))
    interpreter = _environment.interpreter(environ)
    nproc = devices.worker_count(
        line.text("nproc-per-node"), environ, interpreter, line.origin("nproc-per-node")
    )
    notes.append((LOG_LEVELS["INFO"], f"workers on this node: {nproc}"))
    if "monitor-interval" in line.values:
        seconds(line.text("monitor-interval"), line.origin("monitor-interval"), positive=True)
        unused = f"{line.origin('monitor-interval')} has no effect: nothing here polls"
        if line.switch("strict"):
            line.warnings.append(unused)
        else:  # scripts for torchrun often set it
            notes.append((LOG_LEVELS["INFO"], unused))
    if choice(line, "start-method") != BY_NAME["start-method"].default:
        line.warnings.append(f"{line.origin('start-method')} has no effect: PROGRAM is executed")
    logs = output.logs(line, nproc)
    line.warnings.extend(_without_effect(line, node, logs))
    program = entrypoint.command(line, interpreter, environ)
    warm_template: tuple[str, ...] = ()
    if line.switch("warm") or "preload" in line.values:
        from elastic.cli import warm

        warm_template = warm.template(line, program, node)
    notes += [(LOG_LEVELS["INFO"], note) for note in node.notes]
    if line.warnings and line.switch("strict"):
        raise ConfigError(f"{'; '.join(line.warnings)} (an error, because of --strict)")
    if line.warnings:
        notes.append((LOG_LEVELS["WARNING"], "; ".join(line.warnings)))
    signals, forwarded = (_signals(line, name) for name in ("signals-to-handle", "forward-signals"))
    if both := set(signals) & set(forwarded):
        raise ConfigError(
            f"{line.origin('forward-signals')}: {signal.Signals(min(both)).name} stops the "
            f"workers ({line.origin('signals-to-handle')}), so it cannot be forwarded as well"
        )
    drain_signal = _drain_signal(line, signals, forwarded)
    spec = WorkerSpec(
        role=short(line, "role") or DEFAULT_ROLE,  # torchx passes an empty one
        local_world_size=nproc,
        entrypoint=program[0],
        args=program[1:],
        run_id=node.run_id or _random_id(),
        max_restarts=integer(line, "max-restarts", 0, 2**31 - 1),
        master_port=node.master_port or None,
        master_addr=node.local_addr if node.rendezvous is None else None,
        event_log_handler=_event_log_handler(line),
        virtual_local_rank=line.switch("virtual-local-rank"),
    )
    return JobConfig(
        spec=spec,
        warm_template=warm_template,
        warm_modules=line.text("preload"),
        name="<stdin>" if line.program == entrypoint.STDIN else line.program,
        environment=_worker_environment(line, environ, nproc, network_interface, notes),
        shutdown_timeout=_shutdown_timeout(line, environ),
        native=native,
        signals=signals,
        forwarded_signals=forwarded,
        drain_signal=drain_signal,
        drain_timeout=_drain_timeout(line),
        rendezvous=node.rendezvous,
        local_addr=node.local_addr,
        logs=logs,
        line_prefix=output.line_prefix(line, environ),
        worker_cpus=_worker_cpus(line, nproc, environ, interpreter, notes),
        event_log=_event_log(line),
        metrics_port=_metrics_port(line),
        log_level=_log_level(environ),
        log_records=bool(environ.get("LOGLEVEL")),
        error_file=environ.get(ERROR_FILE_VARIABLE, ""),
        is_dry_run=line.switch("dry-run"),
        stop_without_progress=policy.stop_without_progress if policy else 0,
        policy_function=policy.function if policy else "",
        failure_policy=policy_settings,
        result_json=output.result_json(line),
        notes=tuple(notes),
    )


def _without_effect(line: CommandLine, node: NodeConfig, logs: LogOptions) -> list[str]:
    """A warning about options that the agents of plug-ins do not have."""
    if logs.plug_in:
        what = f"--logs-specs={logs.plug_in}"
    elif node.rendezvous is not None and node.rendezvous.is_handler:
        what = f"the rendezvous handler {node.rendezvous.backend}"
    else:
        return []
    given = [
        line.origin(option.name)
        for option in OPTIONS
        if option.needs_native and option.name in line.values
    ]
    if not given:
        return []
    verb = "has" if len(given) == 1 else "have"
    return [f"{', '.join(given)} {verb} no effect with {what}"]


def _failure_rules(
    line: CommandLine, native: dict[str, Any]
) -> tuple[Policy | None, dict[str, str], dict[str, Any]]:
    """The policy of the file, the same as settings of the job, and ``native`` beside it.

    The codes of ``--no-restart-codes`` are the last rule of a policy.
    """
    codes = native["no_restart_codes"]
    if both := {*native["bad_node_codes"]} & {*codes}:
        raise ConfigError(
            f"{min(both)} is in {line.origin('bad-node-codes')} and in "
            f"{line.origin('no-restart-codes')}: the job either continues without the node, or ends"
        )
    if not line.text("failure-policy"):
        return None, {}, native
    from elastic.cli import failure_policy

    policy = failure_policy.read(line.text("failure-policy"), line.origin("failure-policy"))
    if codes:
        rule = f"from=--no-restart-codes on=exit:{format_ranges(codes)} do=stop"
        policy = policy._replace(rules=(*policy.rules, rule))
    return policy, failure_policy.settings(policy), native | {"no_restart_codes": ()}


def _nodes(line: CommandLine) -> NodeConfig:
    bounds = nodes.bounds(line)
    backend = nodes.rendezvous_backend(line)
    keys = nodes.rendezvous_keys(line, backend)
    notes = list(keys.notes) if keys else []
    if nodes.is_single(line, bounds[1], backend, keys):
        return nodes.single(line, keys, notes)
    from elastic.cli import rendezvous

    return rendezvous.several(line, bounds, backend, keys, notes)


def _with_handler(node: NodeConfig) -> NodeConfig:
    config = node.rendezvous
    if config is None or not config.has_plug_in():
        return node
    from elastic.torch_compat.rendezvous import registry

    is_handler = registry.is_plugged_in_handler(config.backend)
    return node._replace(rendezvous=config._replace(is_handler=is_handler))


def rendezvous_handler(config: RendezvousConfig, run_id: str, local_addr: str) -> RendezvousHandler:
    """For an agent that needs one."""
    from elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
    from elastic.torch_compat.rendezvous import handlers

    bounds = config.min_nodes, config.max_nodes
    if not config.has_plug_in():
        options = config.options(run_id, local_addr)
        return handlers.of_options(config.backend, run_id, bounds, options, config.keys)
    given: dict[str, Any] = dict(config.keys.parameters)
    wanted = RendezvousParameters(
        config.backend, config.endpoint, run_id, *bounds, local_addr or None, **given
    )
    try:
        return get_rendezvous_handler(wanted)
    except Exception as error:  # of the plug-in
        if isinstance(error, ElasticError):
            raise
        raise ConfigError(
            f"the rendezvous plug-in {config.backend!r} cannot create a handler: "
            f"{type(error).__name__}: {error}"
        ) from error


def _with_token(line: CommandLine, environ: Mapping[str, str], node: NodeConfig) -> NodeConfig:
    """Adds the job's token, if there is one."""
    named = node.rendezvous.token if node.rendezvous else {}
    path = line.text("token-file") or named.get("token_file", "")
    if not path and not (environ.get(TOKEN_FILE_VARIABLE) or environ.get(TOKEN_VARIABLE)):
        return node
    from elastic.rendezvous import token

    found = token.find(path, environ)
    if node.run_id:
        token.check(found, node.run_id, environ)
    if node.rendezvous is None:
        note = "the token has no effect: a job of one node uses no network for its rendezvous"
        return node._replace(notes=[*node.notes, note])
    return node._replace(rendezvous=node.rendezvous._replace(token=found))


def _worker_environment(
    line: CommandLine,
    environ: Mapping[str, str],
    nproc: int,
    interface: str,
    notes: list[tuple[int, str]],
) -> dict[str, str]:
    """The environment of all workers; the user's own settings stay unchanged."""
    environment = _environment.of_ranks(environ)
    if "OMP_NUM_THREADS" not in environ:
        threads = max(1, devices.usable_cpus() // nproc)
        environment["OMP_NUM_THREADS"] = str(threads)
        if not line.switch("dry-run"):  # which lists the variables
            notes.append((LOG_LEVELS["INFO"], f"OMP_NUM_THREADS={threads} for every worker"))
    if interface:
        from elastic._host import network

        for name, value in network.of_interface(interface).items():
            if environment.setdefault(name, value) == value:
                notes.append((LOG_LEVELS["INFO"], f"{name}={value} for every worker"))
    if "signals-to-handle" in line.values:  # for launchers that the workers are
        names = signal_numbers(line.text("signals-to-handle"), line.origin("signals-to-handle"))
        environment[SIGNALS_VARIABLE] = ",".join(number.name for number in names)
    return environment


def _random_id() -> str:
    random = os.urandom(16).hex()  # a UUID of version 4, as torchrun generates
    variant = "89ab"[int(random[16], 16) % 4]
    return f"{random[:8]}-{random[8:12]}-4{random[13:16]}-{variant}{random[17:20]}-{random[20:]}"


def _native_settings(
    line: CommandLine, node: NodeConfig, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of ``_C.AgentOptions`` that options set alone, and a few that need more."""
    settings = {
        option.native: value
        for option in OPTIONS
        if option.native
        and option.read is not None
        and (value := option.read(line, option.name)) is not None
    }
    action = settings["hang_action"]
    if action != "report" and "hang_timeout" not in settings:
        raise ConfigError(
            f"{line.origin('hang-action')} is {action}: it needs --hang-timeout, a learned one "
            "only reports"
        )
    return settings | {
        "inplace_grace": _inplace_time(line, "inplace-grace", DEFAULT_INPLACE_GRACE_S),
        "inplace_prepare": _inplace_time(line, "inplace-prepare", None),
        "worker_ports": node.worker_ports,
        "share_store": _environment.shares_store(environ),
        "auto_progress": entrypoint.auto_progress(line),
        "capture_stderr": not line.switch("no-stderr-capture"),
    }


def _shutdown_timeout(line: CommandLine, environ: Mapping[str, str]) -> float:
    if "shutdown-timeout" in line.values:
        return seconds(line.text("shutdown-timeout"), line.origin("shutdown-timeout"))
    return shutdown_timeout(environ)


def _inplace_time(line: CommandLine, name: str, default: float | None) -> float | None:
    is_given = name in line.values
    if choice(line, "on-membership-change") == "inplace":
        return seconds(line.text(name), line.origin(name), positive=True) if is_given else default
    if is_given:
        raise ConfigError(
            f"{line.origin(name)} has no effect without --on-membership-change=inplace"
        )
    return None


def _drain_timeout(line: CommandLine) -> float:
    if "drain" not in line.values:
        return DEFAULT_DRAIN_TIMEOUT_S
    return seconds(line.text("drain"), line.origin("drain"), positive=True)


def _drain_signal(line: CommandLine, signals: tuple[int, ...], forwarded: tuple[int, ...]) -> int:
    given = _signals(line, "drain-signal")
    origin = line.origin("drain-signal")
    if len(given) > 1:
        raise ConfigError(f"{origin}: expected one signal")
    if not given:
        if "drain" not in line.values:
            return 0
        if signal.SIGTERM not in signals:
            raise ConfigError(
                f"{line.origin('drain')}: SIGTERM is not handled "
                f"({line.origin('signals-to-handle')}), so name a signal with --drain-signal"
            )
        return int(signal.SIGTERM)
    if given[0] in forwarded:
        raise ConfigError(
            f"{origin}: {signal.Signals(given[0]).name} is forwarded to the workers "
            f"({line.origin('forward-signals')})"
        )
    return given[0]


def _signals(line: CommandLine, option: str) -> tuple[int, ...]:
    return tuple(map(int, signal_numbers(line.text(option), line.origin(option))))


def _worker_cpus(
    line: CommandLine,
    nproc: int,
    environ: Mapping[str, str],
    interpreter: str,
    notes: list[tuple[int, str]],
) -> Sequence[Sequence[int]]:
    if not line.text("numa-binding"):
        return [()] * nproc
    from elastic._host import numa

    mode = choice(line, "numa-binding")
    cpus = numa.worker_cpus(mode, nproc, environ, interpreter)
    bound = (f"local rank {rank} on {format_ranges(own)}" for rank, own in enumerate(cpus))
    notes.append((LOG_LEVELS["INFO"], f"CPUs of the workers: {', '.join(bound)}"))
    return cpus


def _event_log(line: CommandLine) -> str:
    path = line.text("event-log")
    if path in ("console", "null"):  # to torchrun it is short for --event-log-handler
        raise ConfigError(
            f"{line.origin('event-log')} is {path!r}, not a file: write --event-log-handler={path} "
            f"for the handler, or --event-log=./{path} for the file"
        )
    return output.absolute(path, line.origin("event-log")) if path else ""


def _metrics_port(line: CommandLine) -> int:
    return integer(line, "metrics-port", 1, PORT_MAX) if line.text("metrics-port") else 0


def _event_log_handler(line: CommandLine) -> str:
    name = line.text("event-log-handler")
    if "event-log-handler" in line.values:
        from elastic.torch_compat.events.handlers import get_logging_handler

        try:
            get_logging_handler(name)
        except ConfigError as error:
            raise ConfigError(f"{line.origin('event-log-handler')}: {error}") from error
    return name


def _log_level(environ: Mapping[str, str]) -> int:
    text = environ.get(LOG_LEVEL_VARIABLE) or "NOTICE"
    level = _environment.log_level(text)
    if level is None:
        raise ConfigError(f"LOGLEVEL is {text!r}: expected one of {', '.join(LOG_LEVELS)}")
    return level


def parse(argv: Sequence[str], environ: Mapping[str, str], *, is_legacy: bool = False) -> JobConfig:
    """The configuration of a command line and its environment. ``is_legacy``: has ``--use-env``.

    Raises ConfigError, with the attribute ``result_json``: the file for the job's result.
    """
    try:
        line = command_line.read(argv, environ, [USE_ENV] if is_legacy else ())
        if is_legacy and USE_ENV.name not in line.values:
            line = command_line.pass_local_rank(line)
        return configure(line, environ)
    except ConfigError as error:
        path = command_line.result_file(argv, environ)
        if not os.path.isdir(os.path.dirname(path) or "."):
            path = ""  # which the error is about
        setattr(error, "result_json", path)  # noqa: B010 - a native class
        raise
