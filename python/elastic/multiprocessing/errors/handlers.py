"""torch's module of this name."""

from elastic.multiprocessing.errors.error_handler import get_error_handler

__all__ = ["get_error_handler"]
