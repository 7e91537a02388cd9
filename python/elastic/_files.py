"""Files and consoles that may not respond, and files whose path the user chose."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import stat
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

MODE = 0o666  # before the umask
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
WAIT_STEP_S = 0.1
READER_TIMEOUT_S = 5.0  # for the reader of a full pipe
QUEUED_BYTES_MAX = 4 << 20  # of a Writer; data beyond that are dropped


def replace(path: str, data: bytes) -> None:
    """Writes the whole file. Raises OSError.

    No reader sees a part of a new file, or of a regular one that this process may replace. Anything
    else is the user's: a device, a pipe, the target of a link or of a mount is written in place.
    Mode, owner and links stay.
    """
    target = _replaceable(path)
    if target:
        try:
            _rename_over(target, data)
            return
        except OSError as error:
            # For example a mount point, or a directory in which no file may be made.
            if error.errno in FULL:
                raise
    _write_in_place(path, data)


def _replaceable(path: str) -> str:
    """The file that may be replaced by a rename; "" if the path must be written in place."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return "" if os.path.islink(path) else path
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != os.geteuid():
        return ""
    # /dev/stdout is an open file: its path does not show which.
    target = os.path.realpath(path)
    is_same = not _descriptor_entry(path) and os.path.samestat(os.lstat(target), found)
    return target if is_same else ""


def _descriptor_entry(path: str) -> str:
    """The entry of /proc/PID/fd that the path is, or links to; "": it is none."""
    for _ in range(40):  # as many links as the kernel follows
        folder = os.path.realpath(os.path.dirname(path))
        if folder.startswith("/proc/") and folder.endswith("/fd"):
            return os.path.join(folder, os.path.basename(path))
        if not os.path.islink(path):
            return ""
        path = os.path.join(folder, os.readlink(path))
    return ""


def _rename_over(path: str, data: bytes) -> None:
    partial = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(partial, flags, MODE)
    try:
        try:
            with suppress(FileNotFoundError):
                old, new = os.stat(path), os.fstat(descriptor)
                if old.st_gid != new.st_gid:
                    os.fchown(descriptor, -1, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _write_in_place(path: str, data: bytes) -> None:
    # Without O_NONBLOCK the open of a pipe without a reader would block.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    entry = _descriptor_entry(path)
    own = entry.removeprefix(f"/proc/{os.getpid()}/fd/")
    if own.isdecimal() and stat.S_ISREG(os.fstat(int(own)).st_mode):
        # The other users of this open file share its position, and continue after these bytes.
        descriptor = os.dup(int(own))
    else:
        descriptor = os.open(path, flags | (os.O_APPEND if entry else 0), MODE)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and not entry:
            os.ftruncate(descriptor, 0)
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            import select

            if not select.select([], [descriptor], [], READER_TIMEOUT_S)[1]:
                raise OSError(errno.ETIMEDOUT, "its reader does not read") from None


def within(limit: float, call: Callable[[], T], is_stopped: Callable[[], bool] | None = None) -> T:
    """The value of a call to a file system, made in a thread of its own: it may never respond.

    Raises what the call raises; TimeoutError at the limit, or when ``is_stopped`` is true.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    finished = _thread.allocate_lock()
    finished.acquire()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
            if not isinstance(error, Exception):
                raise
        finally:
            finished.release()

    if not _start_thread(run):
        return call()
    left = limit
    while not finished.acquire(timeout=max(0.0, min(left, WAIT_STEP_S))):
        left -= WAIT_STEP_S
        if left <= 0 or (is_stopped is not None and is_stopped()):
            raise TimeoutError(errno.ETIMEDOUT, f"no response within {limit:g} s")
    if errors:
        raise errors[0]
    return results[0]


def _start_thread(run: Callable[[], None]) -> bool:
    """Whether the thread was started; False: the limit of threads is reached.

    It blocks all signals: one that it received would not interrupt the main thread.
    """
    saved = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, saved)
    return True


class Writer:
    """Calls ``write`` with each of the data, in order. For any thread and any signal handler.

    ``write`` must not raise. It is called in a thread of its own, which starts with the first data.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        # A SimpleQueue may be used in a signal handler that interrupted its use.
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._queued = 0
        self._written = 0
        self._is_started = False
        self._starting = _thread.allocate_lock()
        self._flushed = _thread.allocate_lock()
        self._flushed.acquire()

    def put(self, data: bytes) -> bool:
        """Returns False, and drops the data, if too much waits to be written."""
        if self._queued - self._written + len(data) > QUEUED_BYTES_MAX:
            return False
        self._queued += len(data)
        self._queue.put(data)
        # One caller starts the thread; another one, or a signal handler, has queued its data.
        if not self._is_started and self._starting.acquire(blocking=False):
            try:
                self._is_started = self._is_started or _start_thread(self._run)
                with suppress(Empty):  # without a thread the caller writes
                    while not self._is_started:
                        self._write(self._queue.get_nowait() or b"")
            finally:
                self._starting.release()
        return True

    def flush(self, timeout: float) -> bool:
        """Waits up to ``timeout``; returns whether all data are written. Put none afterwards."""
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
