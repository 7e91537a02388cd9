"""The command line under torch's module name, and its parts for programs.

``python -m elastic.run`` is ``elastic-launch``. A program may take the parser, change the namespace
and call ``run``::

    args = get_args_parser().parse_args()
    args.nproc_per_node = "4"
    run(args)  # raises ChildFailedError when workers fail
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elastic import _lazy
from elastic.cli.main import console_main
from elastic.constants import STATIC_PORT

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from elastic.cli.command_line import CommandLine
    from elastic.cli.config import JobConfig
    from elastic.launcher.api import LaunchConfig, elastic_launch
    from elastic.multiprocessing.logs_specs import LogsSpecs

__all__ = [
    "LaunchConfig",
    "config_from_args",
    "console_main",
    "determine_local_world_size",
    "elastic_launch",
    "get_args_parser",
    "get_rdzv_endpoint",
    "get_use_env",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "run",
    "run_script_path",
]


# torch's module of this name has them too, and launchers import them from it.
_HOMES = {"elastic.launcher.api": "LaunchConfig elastic_launch"}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)


def _get_logs_specs_class(logs_specs_name: str | None) -> type[LogsSpecs]:
    """The class of an entry point ``torchrun.logs_specs``; None: DefaultLogsSpecs."""
    from elastic.multiprocessing import logs_specs

    name = logs_specs_name
    return logs_specs.DefaultLogsSpecs if name is None else logs_specs.plugged_in(name)


def get_args_parser() -> ArgumentParser:
    """A parser of torchrun's and elastic's options; attributes have torch's names and types."""
    from elastic import _environment
    from elastic.cli import arguments

    return arguments.parser(_environment.inherited())


def parse_args(args: Sequence[str] | None) -> Namespace:
    return get_args_parser().parse_args(args)


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """``"N"`` or ``"MIN:MAX"`` as two numbers."""
    from elastic.cli import nodes
    from elastic.cli.command_line import CommandLine, Value

    if nnodes.count(":") > 1:  # torch's exception for this one
        raise RuntimeError(f"nnodes is {nnodes!r}: expected N or MIN:MAX")
    return nodes.bounds(CommandLine({"nnodes": Value(nnodes, "nnodes")}, "", (), []))


def determine_local_world_size(nproc_per_node: str) -> int:
    """The number of workers for a value of ``--nproc-per-node``; torch is not imported here."""
    from elastic import _environment
    from elastic._host import devices

    environ = _environment.inherited()
    interpreter = _environment.interpreter(environ)
    return devices.worker_count(nproc_per_node, environ, interpreter, "nproc_per_node")


def get_rdzv_endpoint(args: Namespace) -> str:
    if args.rdzv_backend == "static" and not args.rdzv_endpoint:
        return f"{args.master_addr}:{args.master_port or STATIC_PORT}"
    return str(args.rdzv_endpoint)


def get_use_env(args: Namespace) -> bool:
    """Whether the local rank is passed in ``LOCAL_RANK``: True, unless ``use_env`` is false."""
    return bool(getattr(args, "use_env", True))


def config_from_args(args: Namespace) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """A LaunchConfig for ``elastic_launch``, the entry point and its arguments."""
    from elastic import _environment
    from elastic.cli import resolve
    from elastic.launcher.api import LaunchConfig
    from elastic.multiprocessing.logs_specs import of_options
    from elastic.text import join_endpoints
    from elastic.torch_compat.numa.binding import AffinityMode, NumaOptions

    inherited = _environment.inherited()
    line = _command_line(args)
    job = resolve.configure(line, inherited)
    spec = job.spec
    # As in torch, this process's environment has the workers' defaults.
    changed = {name: job.environment[name] for name in job.environment
               if job.environment[name] != inherited.get(name)}  # fmt: skip
    _environment.update(changed)
    least, most, configs = 1, 1, {}
    backend, endpoint = "c10d", "localhost:0"
    _warn_unused(line, job)
    if (node := job.rendezvous) is not None:
        least, most, backend = node.min_nodes, node.max_nodes, node.backend
        endpoint = node.endpoint
        if args.rdzv_conf:
            from elastic.rendezvous import keys

            configs = keys.split(args.rdzv_conf, "--rdzv-conf")
        if backend == "static":
            configs["rank"] = str(node.node_rank)
        configs |= {name: text for name, text in node.token.items() if name == "token_file"}
    elif spec.master_port:
        backend, endpoint = "static", join_endpoints([(job.local_addr, spec.master_port)])
    config = LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=spec.local_world_size,
        logs_specs=of_options(job.logs),
        run_id=spec.job_id(),
        role=spec.role,
        rdzv_endpoint=endpoint,
        rdzv_backend=backend,
        rdzv_configs=configs,
        max_restarts=spec.max_restarts,
        monitor_interval=float(args.monitor_interval),
        start_method=args.start_method,
        log_line_prefix_template=job.line_prefix,
        local_addr=(job.local_addr if node is not None else args.local_addr) or None,
        numa_options=NumaOptions(AffinityMode(args.numa_binding)) if args.numa_binding else None,
        event_log_handler=args.event_log_handler,
        signals_to_handle=args.signals_to_handle,
        duplicate_stdout_filters=list(job.logs.stdout_filters) or None,
        duplicate_stderr_filters=list(job.logs.stderr_filters) or None,
        virtual_local_rank=spec.virtual_local_rank,
        shutdown_timeout=job.shutdown_timeout,
        warm=bool(job.warm_template),
        preload=tuple(filter(None, str(getattr(args, "preload", None) or "").split(","))),
        native=_native(line, job),
    )
    return config, str(spec.what()), list(spec.args)


# What only the command does, or what a LaunchConfig has no place for.
_ONLY_COMMAND = (
    "drain", "drain-signal", "forward-signals", "result-json", "dry-run", "on-node-loss",
    "max-membership-changes", "topology", "voter-port-range", "failure-policy", "on-exclude",
)  # fmt: skip


def _native(line: CommandLine, job: JobConfig) -> dict[str, Any]:
    """The settings of elastic's own options that were given, for ``LaunchConfig.native``."""
    from elastic.cli.options import OPTIONS

    logs = job.logs
    fields = {
        "event-log": ("event_log", job.event_log),
        "metrics-port": ("metrics_port", job.metrics_port),
        "no-stderr-capture": ("capture_stderr", job.native["capture_stderr"]),
        "auto-progress": ("auto_progress", job.native["auto_progress"]),
        "no-auto-progress": ("auto_progress", job.native["auto_progress"]),
        "worker-port-range": ("worker_ports", job.native["worker_ports"]),
        "inplace-prepare": ("inplace_prepare", job.native["inplace_prepare"]),
        "on-membership-change": ("inplace_grace", job.native["inplace_grace"]),
        "log-max-bytes": ("max_bytes", logs.max_bytes),
        "log-max-files": ("max_files", logs.max_files),
        "merge-lines": ("merge_lines", logs.merge_lines),
    }
    fields |= {
        one.name: (one.native, job.native[one.native])
        for one in OPTIONS
        if one.native and one.native in job.native
    }
    return dict(value for name, value in fields.items() if name in line.values)


def _warn_unused(line: CommandLine, job: JobConfig) -> None:
    import logging

    from elastic.errors import ConfigError

    logger = logging.getLogger(__name__)
    for level, note in job.notes:
        if level >= logging.WARNING:
            logger.log(level, "%s", note)
    names = [*_ONLY_COMMAND]
    if job.rendezvous is None or job.rendezvous.backend != "static":
        names.append("node-rank")
    if given := [line.origin(name) for name in names if name in line.values]:
        listed = ", ".join(given)
        text = f"{listed} cannot be passed in a LaunchConfig: call elastic.run.run(args) instead"
        if line.switch("strict"):
            raise ConfigError(text)
        logger.warning("%s", text)


def _command_line(args: Namespace) -> CommandLine:
    """The namespace as a command line on which every attribute that is not a default was given."""
    from elastic.cli.command_line import CommandLine, Value, pass_local_rank
    from elastic.cli.options import OPTIONS

    values = {}
    for option in OPTIONS:
        given = getattr(args, option.attribute, None)
        if given is None or given == option.attribute_default:
            continue
        text = ("1" if given else "0") if option.is_switch else str(given)
        if isinstance(given, list | tuple):
            text = ",".join(str(part).replace(",", ",,") for part in given)
        values[option.name] = Value(text, f"--{option.name}")
    arguments = getattr(args, "training_script_args", None) or ()
    line = CommandLine(values, args.training_script, tuple(map(str, arguments)), [])
    return line if get_use_env(args) else pass_local_rank(line)


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Runs a script in this process as ``__main__``, as an entry point for ``elastic_launch``."""
    import runpy
    import sys

    sys.argv = [training_script, *training_script_args]
    runpy.run_path(training_script, run_name="__main__")


def run(args: Namespace) -> None:
    """Launches the job of the namespace.

    Raises ChildFailedError if workers of this node failed, LaunchError if the job failed for
    another reason, SignalException after a signal, ConfigError for an invalid configuration.
    """
    from elastic.cli import main as cli

    cli.run_and_raise(_command_line(args))


def main(args: Sequence[str] | None = None) -> None:
    """As ``run``, for a command line. ``elastic.cli.main.main`` returns the exit status."""
    from elastic.multiprocessing.errors import record

    record(run)(parse_args(args))


if __name__ == "__main__":
    console_main()
