"""Worker processes and their output, with the names of ``torch.distributed.elastic``."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
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
    "ProcessFailure",
    "SignalException",
    "Std",
    "record",
]

_HOMES = {
    "ChildFailedError": "elastic.multiprocessing.errors.child_failed_error",
    "DefaultLogsSpecs": "elastic.multiprocessing.logs_specs",
    "LogOptions": "elastic.multiprocessing.logs",
    "LogsDest": "elastic.multiprocessing.logs_specs",
    "LogsSpecs": "elastic.multiprocessing.logs_specs",
    "ProcessFailure": "elastic.multiprocessing.errors.evidence",
    "SignalException": "elastic.multiprocessing.errors.signal_exception",
    "Std": "elastic.multiprocessing.logs",
    "record": "elastic.multiprocessing.errors.child_failed_error",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
