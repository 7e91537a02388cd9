"""Timers over a named pipe: any process of this host that knows its path can set them.

The launcher runs such a server if ``TORCHELASTIC_ENABLE_FILE_TIMER`` is 1, and workers find the
path in ``TORCHELASTIC_TIMER_FILE``. An expired timer kills only its worker, never the server's
process: for the launcher it is a failed worker like any other.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal as signals
import threading
import time
from collections.abc import Callable
from typing import Any

from elastic._plug_in import plug_in
from elastic.torch_compat.timer.api import TimerClient, TimerRequest

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]

logger = logging.getLogger(__name__)

VERSION = 1
CONNECT_TIMEOUT_S = 1.0  # how long a client waits for the server to open the pipe
READ_BYTES = 64 << 10
_PID_MAX = 2**31 - 1


class FileTimerRequest(TimerRequest):
    """``signal`` kills the worker when the timer expires; 0: the expiry is only logged."""

    version = VERSION
    signal: int

    def __new__(
        cls, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0
    ) -> FileTimerRequest:
        made = super().__new__(cls, worker_pid, scope_id, expiration_time)
        made.signal = int(signal)
        return made

    @property
    def worker_pid(self) -> int:
        return int(self.worker_id)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FileTimerRequest)
            and tuple(self) == tuple(other)
            and self.signal == other.signal
        )

    def __hash__(self) -> int:
        return hash((tuple(self), self.signal))

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": self.signal,
            }
        )


class FileTimerClient(TimerClient):
    """Sends the requests of this process. Without a server they raise BrokenPipeError."""

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        self._file_path = file_path
        self.signal = signal

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._send_request(
            FileTimerRequest(os.getpid(), scope_id, expiration_time, int(self.signal))
        )

    def release(self, scope_id: str) -> None:
        self._send_request(FileTimerRequest(os.getpid(), scope_id, -1, 0))

    def _send_request(self, request: FileTimerRequest) -> None:
        line = (request.to_json() + "\n").encode()
        if len(line) > select.PIPE_BUF:  # longer ones are not written atomically
            raise RuntimeError(
                f"the timer request of scope {request.scope_id[:100]!r} has {len(line)} bytes: "
                f"expected at most {select.PIPE_BUF}"
            )
        pipe = self._open()
        try:
            os.write(pipe, line)
        except OSError as error:
            raise BrokenPipeError(f"no timer server reads {self._file_path}") from error
        finally:
            os.close(pipe)

    def _open(self) -> int:
        """The pipe, for blocking writes. The server may open it later than this process."""
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                pipe = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.set_blocking(pipe, True)
                return pipe
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise BrokenPipeError(f"no timer server reads {self._file_path}") from error
            threading.Event().wait(0.05)


class FileTimerServer:
    """Creates the pipe, reads requests from it, and kills the workers of expired timers.

    ``log_event`` is called with the name of an event and its request, if there is one.
    The thread wakes up for requests and expiries, and at least every ``max_interval`` seconds.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ) -> None:
        self._file_path = file_path
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event or (lambda _name, _request: None)
        self._timers: dict[tuple[int, str], FileTimerRequest] = {}
        self._pidfds: dict[int, int] = {}  # so that a reused process id is not killed
        self.expired: dict[int, str] = {}  # by the process that was killed: its scopes
        self._request_count = 0
        self._last_progress_time = int(time.time())
        self._has_client = False
        self._watchdog_thread: threading.Thread | None = None
        self._is_last_pass = False
        self._is_stopping = False
        # A pipe without a name, which needs no removal if this process is killed.
        self._has_name = not file_path.startswith("/proc/")
        self._remove()
        if self._has_name:
            os.mkfifo(file_path, 0o600)
        # Open for reading and writing, so that the end of the last client is not an end of file.
        self._pipe = os.open(file_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_up, self._woken = os.pipe2(os.O_CLOEXEC)
        self._unread = b""

    def start(self) -> None:
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, name="elastic-file-timers", daemon=self._daemon
        )
        self._watchdog_thread.start()
        self._report("watchdog started", None)

    def stop(self) -> None:
        """Ends the thread and removes the pipe; requests that it has not read are dropped."""
        if self._is_closed():
            return
        self._is_stopping = True
        self._end()
        self._report("watchdog stopped", None)

    def run_once(self) -> None:
        """Handles the requests that have been sent, then ends as ``stop`` does."""
        self._is_last_pass = True
        self._end()

    def _is_closed(self) -> bool:
        return self._pipe < 0

    def _end(self) -> None:
        if self._watchdog_thread is not None:
            os.write(self._woken, b"\0")
            self._watchdog_thread.join(max(self._max_interval, 10))
            self._watchdog_thread = None
        if self._is_closed():
            return
        for descriptor in (self._pipe, self._wake_up, self._woken, *self._pidfds.values()):
            os.close(descriptor)
        self._pipe = -1
        self._pidfds.clear()
        self._remove()

    def _remove(self) -> None:
        if self._has_name and os.path.lexists(self._file_path):
            os.remove(self._file_path)

    @staticmethod
    def is_process_running(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except OSError as error:
            return not isinstance(error, ProcessLookupError)
        return True

    def get_last_progress_time(self) -> int:
        """When the thread last checked the timers; now if there was no client yet."""
        return self._last_progress_time if self._has_client else int(time.time())

    def _watchdog_loop(self) -> None:
        while not self._is_stopping:
            is_last_pass = self._is_last_pass
            self._run_watchdog()
            if is_last_pass:
                return
            self._last_progress_time = int(time.time())

    def _run_watchdog(self) -> None:
        self.register_timers(self._get_requests())
        handled = set()
        for pid, timers in self.get_expired_timers(time.time()).items():
            timers.sort(key=lambda timer: timer.expiration_time)
            for timer in timers:
                self._report("timer expired", timer)
            killer = next((timer for timer in timers if timer.signal > 0), None)
            scopes = ", ".join(timer.scope_id for timer in timers)
            if killer is None:
                logger.warning("process %d: the timer of %s expired; it has no signal", pid, scopes)
                handled.add(pid)
                continue
            logger.warning(
                "killing process %d with signal %d: the timer of %s expired",
                pid, killer.signal, scopes,
            )  # fmt: skip
            self.expired[pid] = scopes  # before its end is reported
            if self._reap_worker(pid, killer.signal):
                handled.add(pid)
                self._report("kill worker process", killer)
        self.clear_timers(handled)

    def _report(self, name: str, request: FileTimerRequest | None) -> None:
        with plug_in("log_event of the timer server"):
            self._log_event(name, request)

    def _get_requests(self) -> list[FileTimerRequest]:
        """The requests that have arrived; waits for one until the next timer expires."""
        if not self._is_last_pass:
            earliest = min((one.expiration_time for one in self._timers.values()), default=None)
            wait = self._max_interval
            if earliest is not None:
                wait = min(wait, max(0.0, earliest - time.time()))
            select.select([self._pipe, self._wake_up], [], [], wait)
        try:
            while data := os.read(self._pipe, READ_BYTES):
                self._unread += data
        except BlockingIOError:
            pass
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) > select.PIPE_BUF:
            self._unread = b""
        return [request for line in lines if (request := _read(line)) is not None]

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Adds and releases timers."""
        for request in timer_requests:
            self._request_count += 1
            self._has_client = True
            key = (request.worker_pid, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
                continue
            self._timers[key] = request
            if request.worker_pid not in self._pidfds:
                try:
                    self._pidfds[request.worker_pid] = os.pidfd_open(request.worker_pid)
                except (AttributeError, OSError):  # it has ended, or there are no pidfds
                    continue

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Removes the timers of these processes, and of those that have ended."""
        ended = {
            pid for pid, _ in self._timers
            if pid in worker_pids or not self.is_process_running(pid)
        }  # fmt: skip
        self._timers = {key: one for key, one in self._timers.items() if key[0] not in ended}
        for pid in self._pidfds.keys() - {pid for pid, _ in self._timers}:
            os.close(self._pidfds.pop(pid))

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """The timers that have expired at ``deadline``, by process id."""
        expired: dict[int, list[FileTimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_pid, []).append(request)
        return expired

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        try:
            if worker_pid in self._pidfds and hasattr(signals, "pidfd_send_signal"):
                signals.pidfd_send_signal(self._pidfds[worker_pid], signal)
            else:
                os.kill(worker_pid, signal)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError, ValueError) as error:
            logger.error("cannot send signal %d to process %d: %s", signal, worker_pid, error)
            return False
        return True


def _read(line: bytes) -> FileTimerRequest | None:
    """One request. An invalid one is logged and dropped: a client cannot stop the server."""
    try:
        fields: dict[str, Any] = json.loads(line)
        request = FileTimerRequest(
            int(fields["pid"]),
            str(fields["scope_id"]),
            float(fields["expiration_time"]),
            int(fields["signal"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        logger.warning("ignoring the invalid timer request %r: %s", line[:200], error)
        return None
    # kill(2) takes 0 and negative numbers for groups of processes.
    if request.worker_pid < 1:
        logger.warning("ignoring a timer request for process %d", request.worker_pid)
        return None
    if request.worker_pid > _PID_MAX or not (
        math.isfinite(request.expiration_time) and 0 <= request.signal < signals.NSIG
    ):
        logger.warning("ignoring the invalid timer request %r", line[:200])
        return None
    return request
