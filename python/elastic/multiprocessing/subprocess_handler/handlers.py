"""torch's module of this name."""

from elastic.multiprocessing.subprocess_handler.subprocess_handler import get_subprocess_handler

__all__ = ["get_subprocess_handler"]
