"""Failures of workers and the error files that they write."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.multiprocessing.errors.child_failed_error import ChildFailedError, record
    from elastic.multiprocessing.errors.error_handler import ErrorHandler, get_error_handler
    from elastic.multiprocessing.errors.evidence import ProcessFailure

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "ProcessFailure",
    "get_error_handler",
    "record",
]

_HOMES = {
    "elastic.multiprocessing.errors.child_failed_error": "ChildFailedError record",
    "elastic.multiprocessing.errors.error_handler": "ErrorHandler get_error_handler",
    "elastic.multiprocessing.errors.evidence": "ProcessFailure",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
