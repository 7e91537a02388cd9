"""A worker's failure and its evidence: how it ended, its error file, its last output.

The earliest evidence wins: the time of the exception in the worker's error file if it wrote one
(``torch.distributed.elastic.multiprocessing.errors.record`` does), else the time of its exit.
A damaged file cannot cause an exception; unreadable content is omitted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from elastic._C import WorkerFailure

TAIL_LINES_MAX = 50
TAIL_BYTES_MAX = 64 * 1024
ERROR_FILE_BYTES_MAX = 4 * 1024 * 1024


class _Evidence(NamedTuple):
    rank: int
    local_rank: int
    pid: int
    exitcode: int  # negative: the signal that killed it
    shell_code: int
    how: str  # "killed by signal 9 (SIGKILL)"
    timestamp: float  # wall time of the earliest evidence
    started: bool = True
    error_file: str = ""  # "": it wrote none
    error_file_data: Mapping[str, object] | None = None
    message: str = ""  # of the exception in the error file
    traceback: str = ""
    stderr_tail: tuple[str, ...] = ()
    log_dir: str = ""  # "": its output is in no permanent file
    hint: str = ""


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
                message=message,
            )
        )
        found = _with_error_file(known, error_file)
        if not found.error_file:
            return found._replace(error_file="<N/A>")
        stamp = _error_fields(found.error_file_data or {})[2]
        return found if stamp is None else found._replace(timestamp=int(stamp))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._make, (tuple(self),)

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


def examine(
    failures: Sequence[WorkerFailure], *, keeps_logs: bool, oom_kills: int | None
) -> dict[int, ProcessFailure]:
    """The failures by rank, in the order of the evidence.

    Workers that could not be started come first, because that may cause the other failures.
    ``oom_kills`` is the number of OOM kills that were counted while the job ran; None: unknown.
    """
    found = [_examine(failure, keeps_logs, oom_kills) for failure in failures]
    found.sort(key=lambda failure: (failure.started, failure.timestamp))
    return {failure.rank: failure for failure in found}


def _examine(failure: WorkerFailure, keeps_logs: bool, oom_kills: int | None) -> ProcessFailure:
    exited = failure.exit
    exit_time = time.time() - (time.monotonic() - exited.at)
    known = _Evidence(
        rank=failure.rank,
        local_rank=failure.local_rank,
        pid=failure.pid,
        exitcode=-exited.signal if exited.signal else exited.code,
        shell_code=exited.shell_code,
        how=exited.describe(),
        timestamp=exit_time,
        started=not exited.stage,
        stderr_tail=_tail(failure.stderr_path) or tuple(failure.stderr_tail.splitlines()),
        log_dir=os.path.dirname(failure.stderr_path or failure.stdout_path) if keeps_logs else "",
        hint=_oom_hint(oom_kills) if exited.signal == _SIGKILL else "",
    )
    return _with_error_file(ProcessFailure._make(known), failure.error_file)


_SIGKILL = 9


def _oom_hint(oom_kills: int | None) -> str:
    if oom_kills is None:
        return ""
    if oom_kills == 0:
        return "not the out-of-memory killer of this control group, which counted no kill"
    from elastic._host import cgroup

    limit = cgroup.memory_limit()
    within = f" at its limit of {limit / 2**20:.0f} MiB" if limit is not None else ""
    return (
        "probably the kernel's out-of-memory killer, which struck this control group"
        f"{within} {oom_kills} time{'s' if oom_kills > 1 else ''} during the job"
    )


def _with_error_file(failure: ProcessFailure, path: str) -> ProcessFailure:
    """Adds the content of the worker's error file; a partial file adds nothing."""
    if not path:
        return failure
    import json

    try:
        with open(path, "rb") as file:
            written = os.fstat(file.fileno()).st_mtime
            data = json.loads(file.read(ERROR_FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return failure
    if not isinstance(data, dict):
        return failure
    message, traceback, timestamp = _error_fields(data)
    # torch writes whole seconds; the file's modification time has the fraction.
    if timestamp is not None and 0 <= written - timestamp < 2:
        timestamp = written
    return failure._replace(
        error_file=path,
        error_file_data=data,
        message=message,
        traceback=traceback,
        timestamp=min(failure.timestamp, timestamp or failure.timestamp),
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
    import json

    data = dict(failure.error_file_data or {})
    message = data.get("message")
    if not isinstance(message, dict):
        text = failure.message or f"{failure.who()} {failure.how}"
        message = {"message": text, "extraInfo": {"timestamp": str(int(failure.timestamp))}}
    data["message"] = {**message, "errorCode": failure.shell_code}
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(data, file)
    os.replace(partial, path)
