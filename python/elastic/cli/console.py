"""Messages to the console. A console that fails or blocks does not affect the job.

A separate thread writes them: a full pipe that is never read, a stopped terminal or a slow disk
must not delay the launcher's handling of signals and workers. Text that cannot be written is
dropped.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
from queue import SimpleQueue

STDERR = 2
QUEUED_BYTES_MAX = 4 << 20  # text beyond that is dropped
FLUSH_TIMEOUT_S = 30.0  # at the end, for a console that blocks
STOP_FLUSH_TIMEOUT_S = 1.0  # the same after a signal


class OutputError(Exception):
    """The result of a command cannot be written to stdout."""


def show(text: str) -> None:
    """Writes the result of a command to stdout; "": what other modules have printed.

    Raises OutputError, and BrokenPipeError if its reader has closed the pipe, as in ``… | head``.
    """
    try:
        if text:
            print(text, end="", flush=True)
        elif sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write the output: {error.strerror or error}") from error


class Console:
    """Writes lines to stderr, in order. Any thread and any signal handler may call ``write``."""

    def __init__(self) -> None:
        # A SimpleQueue may be used in a signal handler that interrupted its use.
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._queued = 0
        self._written = 0
        self._is_started = False
        self._flushed = _thread.allocate_lock()
        self._flushed.acquire()

    def write(self, text: str) -> None:
        data = (text + "\n").encode(errors="backslashreplace")
        if self._queued - self._written + len(data) > QUEUED_BYTES_MAX:
            return
        self._queued += len(data)
        self._queue.put(data)
        if not self._is_started:
            self._is_started = self._start()

    def _start(self) -> bool:
        """Starts the thread. If that fails, the calling thread writes the text."""
        # The thread blocks all signals: one that it received would not interrupt the main thread.
        saved = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            while not self._queue.empty():
                _write_all(self._queue.get() or b"")
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, saved)
        return True

    def flush(self, timeout: float) -> None:
        """Waits up to ``timeout`` until all text is written. Do not call ``write`` afterwards."""
        if self._is_started:
            self._queue.put(None)
            if self._flushed.acquire(timeout=timeout):
                self._flushed.release()

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            _write_all(data)
            self._written += len(data)
        self._flushed.release()


def _write_all(data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(STDERR, left) :]
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            import select

            select.select([], [STDERR], [])
        except OSError:
            return


def open_standard_descriptors() -> None:
    """Opens /dev/null where descriptor 0, 1 or 2 is closed, so that no other file gets the number.

    Workers inherit them.
    """
    for descriptor in (0, 1, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(opened, True)
