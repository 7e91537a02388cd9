"""Worker processes and their output, with the names of ``torch.distributed.elastic``."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.multiprocessing.api import (
        MultiprocessContext,
        PContext,
        RunProcsResult,
        SubprocessContext,
        start_processes,
        to_map,
    )
    from elastic.multiprocessing.errors.child_failed_error import ChildFailedError, record
    from elastic.multiprocessing.errors.evidence import ProcessFailure
    from elastic.multiprocessing.errors.signal_exception import SignalException
    from elastic.multiprocessing.logs import LogOptions, Std
    from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs

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
    "ChildFailedError": "elastic.multiprocessing.errors.child_failed_error",
    "DefaultLogsSpecs": "elastic.multiprocessing.logs_specs",
    "LogOptions": "elastic.multiprocessing.logs",
    "LogsDest": "elastic.multiprocessing.logs_specs",
    "LogsSpecs": "elastic.multiprocessing.logs_specs",
    "MultiprocessContext": "elastic.multiprocessing.api",
    "PContext": "elastic.multiprocessing.api",
    "ProcessFailure": "elastic.multiprocessing.errors.evidence",
    "RunProcsResult": "elastic.multiprocessing.api",
    "SignalException": "elastic.multiprocessing.errors.signal_exception",
    "Std": "elastic.multiprocessing.logs",
    "SubprocessContext": "elastic.multiprocessing.api",
    "record": "elastic.multiprocessing.errors.child_failed_error",
    "start_processes": "elastic.multiprocessing.api",
    "to_map": "elastic.multiprocessing.api",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
