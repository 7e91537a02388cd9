"""Worker processes and their output, with the names of ``torch.distributed.elastic``."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.multiprocessing.logs import LogsSpecs, Std

__all__ = [
    "LogsSpecs",
    "Std",
]

_HOMES = {
    "LogsSpecs": "elastic.multiprocessing.logs",
    "Std": "elastic.multiprocessing.logs",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
