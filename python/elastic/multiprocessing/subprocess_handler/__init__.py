"""A program in a separate process, with torch's module names."""

from elastic.multiprocessing.subprocess_handler.subprocess_handler import (
    SubprocessHandler,
    get_subprocess_handler,
)

__all__ = ["SubprocessHandler", "get_subprocess_handler"]
