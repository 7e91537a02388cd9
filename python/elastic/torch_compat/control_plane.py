"""torch's module of this name: an HTTP server of a worker for debugging.

The server itself is torch's; it is imported when ``TORCH_WORKER_SERVER_SOCKET`` names its socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from elastic import _environment
from elastic.multiprocessing.errors import get_error_handler

__all__ = ["worker_main"]

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"


@contextmanager
def worker_main() -> Iterator[None]:
    """The main function of a worker, as a decorator or in a ``with`` statement.

    An exception is written to the worker's error file, as ``record`` does.
    """
    handler = get_error_handler()
    handler.initialize()
    with ExitStack() as stack:
        if socket_path := _environment.get(TORCH_WORKER_SERVER_SOCKET):
            from elastic.torch._store import worker_server

            stack.callback(worker_server(socket_path).shutdown)
        try:
            yield
        except Exception as error:
            handler.record_exception(error)
            raise
