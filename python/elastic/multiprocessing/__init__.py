"""Worker processes and their output, with the names of ``torch.distributed.elastic``."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.multiprocessing.errors.child_failed_error import ChildFailedError, record
    from elastic.multiprocessing.errors.evidence import ProcessFailure
    from elastic.multiprocessing.logs import LogOptions, Std
    from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from elastic.multiprocessing.signals import SignalException
    from elastic.torch_compat.processes.api import (
        MultiprocessContext,
        PContext,
        RunProcsResult,
        SubprocessContext,
        start_processes,
        to_map,
    )

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "LogOptions",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "record",
    "start_processes",
    "to_map",
]

_HOMES = {
    "elastic.multiprocessing.errors.child_failed_error": "ChildFailedError record",
    "elastic.multiprocessing.logs_specs": "DefaultLogsSpecs LogsDest LogsSpecs",
    "elastic.multiprocessing.logs": "LogOptions Std",
    "elastic.torch_compat.processes.api": (
        "MultiprocessContext PContext RunProcsResult SubprocessContext start_processes to_map"
    ),
    "elastic.multiprocessing.errors.evidence": "ProcessFailure",
    "elastic.multiprocessing.signals": "SignalException",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
