"""Messages to the console. A console that fails or blocks does not affect the job.

A separate thread writes them: a full pipe that is never read, a stopped terminal or a slow disk
must not delay the launcher's handling of signals and workers. Text that cannot be written is
dropped.
"""

from __future__ import annotations

import os
import sys

from elastic._files import Writer

STDERR = 2
FLUSH_TIMEOUT_S = 30.0  # at the end, for a console that blocks
STOP_FLUSH_TIMEOUT_S = 1.0  # the same after a signal


class OutputError(Exception):
    """The result of a command cannot be written to stdout."""


def show(text: str) -> None:
    """Writes the result of a command to stdout; with "" flushes what other modules have printed.

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
        self._writer = Writer(_write_all)

    def write(self, text: str) -> None:
        self._writer.put((text + "\n").encode(errors="backslashreplace"))

    def flush(self, timeout: float) -> None:
        """Waits up to ``timeout`` until all text is written. Do not call ``write`` afterwards."""
        self._writer.flush(timeout)


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
