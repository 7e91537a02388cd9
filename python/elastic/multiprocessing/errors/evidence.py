"""A worker's failure and its evidence: how it ended, its error file, its last output.

The native agent has found the time and the cause; this module adds the texts. A damaged file cannot
cause an exception; unreadable content is omitted.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elastic import _C, _files, _torch_bases
from elastic._data import data, field

if TYPE_CHECKING:
    from elastic._C import WorkerFailure

TAIL_LINES_MAX = 50
TAIL_BYTES_MAX = 64 * 1024
ERROR_FILE_BYTES_MAX = 4 * 1024 * 1024
# As in torch, for the file and the message that a worker did not write.
NOT_AVAILABLE = "<N/A>"
NO_MESSAGE = "<NONE>"


class _Base:
    """A base to which torch's can be added."""


@data
class ProcessFailure(_Base):
    """A worker that failed and was not stopped by the agent, and the evidence.

    It has the arguments of torch's class; the error file is read at once.
    """

    local_rank: int
    pid: int
    exitcode: int  # negative: the signal that killed it
    error_file: str = NOT_AVAILABLE  # this value: it wrote none, or it is removed with the job
    error_file_data: Mapping[str, object] = field(init=False)
    message: str = field(init=False)  # of the exception in the error file; without one, ``how``
    timestamp: int = field(init=False)
    time: float = field(init=False)  # wall time of the earliest evidence
    rank: int = field(init=False)
    shell_code: int = field(init=False)
    how: str = field(init=False)  # "killed by signal 9 (SIGKILL)"
    started: bool = field(default=True, init=False)
    is_consequence: bool = field(default=False, init=False)  # of another failure, known later
    traceback: str = field(default="", init=False)
    stderr_tail: tuple[str, ...] = field(default=(), init=False)
    _line: str = field(default="", init=False)  # the error, as the agent has found it
    log_dir: str = field(default="", init=False)  # "": its output is in no permanent file
    hint: str = field(default="", init=False)
    # Who has to act: or user input, platform, infrastructure.
    failure_class: str = field(default="user worker", init=False)
    # Or exit code, exception, signal, out of memory, GPU fault, not started, unreachable.
    cause: str = field(default="unknown", init=False)

    def __init__(self, local_rank: int, pid: int, exitcode: int, error_file: str = "") -> None:
        self.local_rank, self.pid, self.exitcode = local_rank, pid, exitcode
        self.error_file = NOT_AVAILABLE
        self.error_file_data = {"message": NO_MESSAGE}
        self.rank = local_rank
        self.shell_code = 128 - exitcode if exitcode < 0 else exitcode
        self.how = _C.describe_exit(exitcode)
        self.message = f"process {pid} {self.how}"
        if exitcode < 0:  # as torch
            self.message = f"Signal {-exitcode} ({self.signal_name()}) received by PID {pid}"
        self.time = self.timestamp = int(time.time())
        self._read(error_file)
        if self.has_error_file():
            stamp = _error_fields(self.error_file_data)[2]
            if stamp is not None:
                self.time = self.timestamp = int(stamp)

    def _read(self, path: str) -> None:
        """Adds the content of the worker's error file; a partial file adds nothing."""
        data = _content(path)
        if data is None:
            return
        message, self.traceback, _ = _error_fields(data)
        self.error_file, self.error_file_data = path, data
        self.message = message or self.message

    def has_error_file(self) -> bool:
        """Whether the worker wrote an error file, whose content is ``error_file_data``.

        ``error_file`` is its path if it is not removed at the end of the job.
        """
        return self.error_file_data.get("message") != NO_MESSAGE

    def error(self) -> str:
        """The error that the worker reported; "" if the message only repeats how it ended."""
        return "" if self.message == self.how else self.message

    def error_line(self) -> str:
        """The error in one line; of a DataLoader's worker it is that of the worker."""
        return self._line or next(iter(self.error().splitlines()), "")

    def describe(self) -> str:
        """``rank 3 (local rank 1, pid 77) exited with code 1``"""
        return _C.describe_worker(self.rank, self.how, local_rank=self.local_rank, pid=self.pid)

    def signal_name(self) -> str:
        """As torch: the signal's name, or ``<N/A>``."""
        return _signal_name(-self.exitcode)

    def timestamp_isoformat(self) -> str:
        whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"{whole}.{int(self.time % 1 * 1e6):06d}"


_torch_bases.derive(ProcessFailure, "multiprocessing.errors", "ProcessFailure")


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "<N/A>"


def examine(failures: Sequence[WorkerFailure], *, keeps_logs: bool) -> dict[int, ProcessFailure]:
    """The failures by rank, in the order of the agent: by time, and consequences last.

    Workers that could not be started come first, because that may cause the other failures.
    """
    # Read once, so that failures differ exactly as the agent's clock measured.
    offset = time.time() - time.monotonic()
    found = [_examine(failure, keeps_logs, offset) for failure in failures]
    found.sort(key=lambda failure: failure.started)
    for earlier, failure in itertools.pairwise(found):
        failure.is_consequence = earlier.is_consequence or failure.time < earlier.time
    return {failure.rank: failure for failure in found}


def add_timers(failures: Mapping[int, ProcessFailure], expired: Mapping[int, str]) -> None:
    """Adds the timers (``elastic.timer``) that killed workers, by process id."""
    for failure in failures.values():
        scopes = expired.get(failure.pid)
        if scopes is not None and failure.exitcode < 0:
            failure.failure_class, failure.cause = "user worker", "timer expired"
            failure.hint = f"the launcher killed it, since the timer of {scopes} expired"


def _examine(failure: WorkerFailure, keeps_logs: bool, offset: float) -> ProcessFailure:
    exited, known = failure.exit, failure.evidence
    was_stopped = exited.stopped_by_us and exited.signal
    exitcode = -exited.signal if exited.signal and not was_stopped else failure.exit_code
    found = ProcessFailure(failure.local_rank, failure.pid, exitcode)
    found.rank = failure.rank
    found.shell_code = failure.exit_code
    found.how = failure.message
    found.time = offset + failure.failed_at
    found.timestamp = int(found.time)
    found.started = not exited.stage
    found.message = known.error or found.how
    found._line = known.error
    found.stderr_tail = tuple(failure.stderr_tail.splitlines()) or _tail(failure.stderr_path)
    if keeps_logs:
        found.log_dir = os.path.dirname(failure.stderr_path or failure.stdout_path)
    found.hint = known.hint
    found.failure_class, found.cause = known.failure_class, known.cause
    found._read(failure.error_file)
    if not keeps_logs:  # the file is removed with the agent's directory
        found.error_file = NOT_AVAILABLE
    return found


def _content(path: str) -> dict[str, object] | None:
    """The content of an error file; None if it does not exist or cannot be read."""
    if not path or path == NOT_AVAILABLE:
        return None
    import json

    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(ERROR_FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _error_fields(data: Mapping[str, object]) -> tuple[str, str, float | None]:
    """Message, traceback and time, from either of the two formats that torch reads."""
    outer = data.get("message", "")
    if not isinstance(outer, dict):
        return str(outer), "", _number(data.get("timestamp"))
    extra = outer.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    traceback = str(extra.get("py_callstack") or "")
    return str(outer.get("message", "")), traceback, _number(extra.get("timestamp"))


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _tail(path: str) -> tuple[str, ...]:
    """The last lines of a file; () if it cannot be read."""
    if not path:
        return ()
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES_MAX))
            text = file.read(TAIL_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-TAIL_LINES_MAX:])


def pass_on(failure: ProcessFailure, path: str) -> None:
    """Writes the failure to the error file of the launcher's own parent, in torch's format."""
    data = dict(failure.error_file_data)
    message = data.get("message")
    if not isinstance(message, dict):
        text = failure.error() or failure.describe()
        message = _message(text, failure.time, "\n".join(failure.stderr_tail))
    data["message"] = {**message, "errorCode": failure.shell_code}
    _write(data, path)


def pass_on_remote(text: str, timestamp: float, output: str, code: int, path: str) -> None:
    """The same for the failure of a worker of another node."""
    _write({"message": {**_message(text, timestamp, output), "errorCode": code}}, path)


def _message(text: str, timestamp: float, output: str) -> dict[str, object]:
    extra = {"timestamp": str(int(timestamp))}
    if "Traceback (most recent call last):" in output:
        extra["py_callstack"] = output
    return {"message": text, "extraInfo": extra}


def _write(data: Mapping[str, object], path: str) -> None:
    import json

    _files.replace(path, json.dumps(data).encode())
