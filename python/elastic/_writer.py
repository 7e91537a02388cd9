"""Writes to a descriptor that may not respond, in a thread of its own."""

from __future__ import annotations

import _thread
import signal
from queue import SimpleQueue

TYPE_CHECKING = False  # type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable

QUEUED_BYTES_MAX = 4 << 20  # data beyond that are dropped


class Writer:
    """Calls ``write`` with each of the data, in order. For any thread and any signal handler.

    ``write`` must not raise. The thread starts with the first data.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        # A SimpleQueue may be used in a signal handler that interrupted its use.
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._queued = 0
        self._written = 0
        self._is_started = False
        self._flushed = _thread.allocate_lock()
        self._flushed.acquire()

    def put(self, data: bytes) -> bool:
        """False: too much waits to be written, and the data are dropped."""
        if self._queued - self._written + len(data) > QUEUED_BYTES_MAX:
            return False
        self._queued += len(data)
        self._queue.put(data)
        if not self._is_started:
            self._is_started = self._start()
        return True

    def _start(self) -> bool:
        """Starts the thread. If that fails, the calling thread writes the data."""
        # The thread blocks all signals: one that it received would not interrupt the main thread.
        saved = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            while not self._queue.empty():
                self._write(self._queue.get() or b"")
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, saved)
        return True

    def flush(self, timeout: float) -> bool:
        """Waits up to ``timeout`` until all data are written: whether they are. Put none later."""
        if not self._is_started:
            return True
        self._queue.put(None)
        is_flushed = self._flushed.acquire(timeout=timeout)
        if is_flushed:
            self._flushed.release()
        return is_flushed

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            self._write(data)
            self._written += len(data)
        self._flushed.release()
