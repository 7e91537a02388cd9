"""A worker's failure and its evidence: how it ended, its error file, its last output.

The native agent has found the time and the cause; this module adds the texts. A damaged file cannot
cause an exception; unreadable content is omitted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic import _files

if TYPE_CHECKING:
    from elastic._C import WorkerFailure

TAIL_LINES_MAX = 50
TAIL_BYTES_MAX = 64 * 1024
ERROR_FILE_BYTES_MAX = 4 * 1024 * 1024
# As in torch, for the file and the message that a worker did not write.
NOT_AVAILABLE = "<N/A>"
NO_MESSAGE = "<NONE>"


class _Evidence(NamedTuple):
    rank: int
    local_rank: int
    pid: int
    exitcode: int  # negative: the signal that killed it
    shell_code: int
    how: str  # "killed by signal 9 (SIGKILL)"
    timestamp: float  # wall time of the earliest evidence
    error_file_data: Mapping[str, object]
    started: bool = True
    error_file: str = ""  # "": it wrote none
    message: str = ""  # of the exception in the error file
    traceback: str = ""
    stderr_tail: tuple[str, ...] = ()
    log_dir: str = ""  # "": its output is in no permanent file
    hint: str = ""
    failure_class: str = "user worker"  # who has to act: or user input, platform, infrastructure
    # Or exit code, exception, signal, out of memory, GPU fault, not started, unreachable.
    cause: str = "unknown"


class ProcessFailure(_Evidence):
    """A worker that failed and was not stopped by the agent, and the evidence.

    The arguments are those of torch's class; the error file is read at once.
    """

    __slots__ = ()

    def __new__(
        cls, local_rank: int, pid: int, exitcode: int, error_file: str = ""
    ) -> ProcessFailure:
        how = f"exited with code {exitcode}"
        message = f"process {pid} {how}"
        if exitcode < 0:
            name = _signal_name(-exitcode)
            how = f"killed by signal {-exitcode} ({name})"
            message = f"Signal {-exitcode} ({name}) received by PID {pid}"
        known = cls._make(
            _Evidence(
                rank=local_rank,
                local_rank=local_rank,
                pid=pid,
                exitcode=exitcode,
                shell_code=128 - exitcode if exitcode < 0 else exitcode,
                how=how,
                timestamp=int(time.time()),
                error_file_data={"message": NO_MESSAGE},
                message=message,
            )
        )
        found = _with_error_file(known, error_file)
        if not found.has_error_file():
            return found._replace(error_file=NOT_AVAILABLE)
        stamp = _error_fields(found.error_file_data)[2]
        return found if stamp is None else found._replace(timestamp=int(stamp))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._make, (tuple(self),)

    def has_error_file(self) -> bool:
        """Whether the worker wrote an error file, whose content is ``error_file_data``."""
        return self.error_file not in ("", NOT_AVAILABLE)

    def who(self) -> str:
        pid = f", pid {self.pid}" if self.pid > 0 else ""
        return f"rank {self.rank} (local rank {self.local_rank}{pid})"

    def signal_name(self) -> str:
        """As torch: the signal's name, or ``<N/A>``."""
        return _signal_name(-self.exitcode)

    def timestamp_isoformat(self) -> str:
        whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.timestamp))
        return f"{whole}.{int(self.timestamp % 1 * 1e6):06d}"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "<N/A>"


def examine(failures: Sequence[WorkerFailure], *, keeps_logs: bool) -> dict[int, ProcessFailure]:
    """The failures by rank, in the order of the evidence.

    Workers that could not be started come first, because that may cause the other failures.
    """
    # Read once: the differences between failures are those of the clock that the agent used.
    offset = time.time() - time.monotonic()
    found = [_examine(failure, keeps_logs, offset) for failure in failures]
    found.sort(key=lambda failure: (failure.started, failure.timestamp))
    return {failure.rank: failure for failure in found}


def with_timers(
    failures: Mapping[int, ProcessFailure], expired: Mapping[int, str]
) -> dict[int, ProcessFailure]:
    """The failures, with the timers (``elastic.timer``) that killed workers, by process id."""
    found = dict(failures)
    for rank, failure in failures.items():
        scopes = expired.get(failure.pid)
        if scopes is not None and failure.exitcode < 0:
            found[rank] = failure._replace(
                failure_class="user worker",
                cause="timer expired",
                hint=f"the launcher killed it, since the timer of {scopes} expired",
            )
    return found


def _examine(failure: WorkerFailure, keeps_logs: bool, offset: float) -> ProcessFailure:
    exited, known = failure.exit, failure.evidence
    was_stopped = exited.stopped_by_us and exited.signal
    found = _Evidence(
        rank=failure.rank,
        local_rank=failure.local_rank,
        pid=failure.pid,
        exitcode=-exited.signal if exited.signal and not was_stopped else failure.exit_code,
        shell_code=failure.exit_code,
        how=failure.message,
        timestamp=offset + failure.failed_at,
        started=not exited.stage,
        error_file_data={"message": NO_MESSAGE},
        message=known.error,
        stderr_tail=_tail(failure.stderr_path) or tuple(failure.stderr_tail.splitlines()),
        log_dir=os.path.dirname(failure.stderr_path or failure.stdout_path) if keeps_logs else "",
        hint=known.hint,
        failure_class=known.failure_class,
        cause=known.cause,
    )
    return _with_error_file(ProcessFailure._make(found), failure.error_file)


def _with_error_file(failure: ProcessFailure, path: str) -> ProcessFailure:
    """Adds the content of the worker's error file; a partial file adds nothing."""
    if not path:
        return failure
    import json

    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(ERROR_FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return failure
    if not isinstance(data, dict):
        return failure
    message, traceback, _ = _error_fields(data)
    return failure._replace(
        error_file=path,
        error_file_data=data,
        message=message or failure.message,
        traceback=traceback,
    )


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
        text = failure.message or f"{failure.who()} {failure.how}"
        message = _message(text, failure.timestamp, "\n".join(failure.stderr_tail))
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
