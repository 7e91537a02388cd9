"""Failures of workers and the error files that they write."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.multiprocessing.errors.evidence import ProcessFailure

__all__ = [
    "ProcessFailure",
]

_HOMES = {
    "ProcessFailure": "elastic.multiprocessing.errors.evidence",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
