"""torch's module of this name: processes without an agent, and their output."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from elastic.multiprocessing import signals
from elastic.multiprocessing.errors.evidence import ProcessFailure
from elastic.multiprocessing.logs import Std
from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
from elastic.multiprocessing.signals import SignalException
from elastic.torch_compat.processes.multiprocess_context import MultiprocessContext
from elastic.torch_compat.processes.process_context import PContext, RunProcsResult
from elastic.torch_compat.processes.subprocess_context import SubprocessContext

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "get_std_cm",
    "start_processes",
    "to_map",
]

T = TypeVar("T")

_terminate_process_handler = signals._terminate_process_handler


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: Mapping[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Starts one process for each local rank and returns their running context.

    In the main thread the signals of TORCHELASTIC_SIGNALS_TO_HANDLE raise SignalException from now
    on; then close the context, which stops the processes.
    """
    context: PContext
    output = logs_specs, log_line_prefixes, numa_options
    filters = duplicate_stdout_filters, duplicate_stderr_filters
    if isinstance(entrypoint, str):
        context = SubprocessContext(name, entrypoint, args, envs, *output, *filters)
    else:
        context = MultiprocessContext(name, entrypoint, args, envs, start_method, *output, *filters)
    context.start()
    return context


def _get_kill_signal() -> signal.Signals:
    """The signal that ends a process which did not stop in time."""
    return signal.SIGKILL


def _get_default_signal() -> signal.Signals:
    """The signal that asks a process to stop."""
    return signal.SIGTERM


def to_map(val_or_map: T | Mapping[int, T], local_world_size: int) -> dict[int, T | Std]:
    """One value for every local rank; ranks that a mapping omits have ``Std.NONE``."""
    if isinstance(val_or_map, Mapping):
        return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
    return dict.fromkeys(range(local_world_size), val_or_map)


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]
) -> AbstractContextManager[None]:
    """A redirection to ``std_rd``, or none if that is empty."""
    return redirect_fn(std_rd) if std_rd else nullcontext()
