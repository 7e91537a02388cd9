"""The result of a job as a JSON file (``--result-json``): the failure report as data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from elastic import _C, _files
from elastic.agent.server.api import own_failure
from elastic.cli import report

if TYPE_CHECKING:
    from elastic.agent.server.api import RunResult
    from elastic.multiprocessing.errors.evidence import ProcessFailure

VERSION = 1  # of the format; fields may be added without a new version


def write(path: str, name: str, result: RunResult) -> None:
    _files.replace(path, (json.dumps(as_data(name, result), indent=2) + "\n").encode())


def as_data(name: str, result: RunResult) -> dict[str, Any]:
    failures = dict(result.failures)
    job = result.job
    first: dict[str, Any] | None = None
    own_codes = (_C.EXIT_STOPPED_AT_STEP, _C.EXIT_PARTIAL, _C.EXIT_BAD_HOST)
    is_own = result.exit_code in own_codes and not report.worker_failed(result)
    if result.exit_code != 0 and not is_own:
        own = own_failure(result)
        if own is not None:
            first = _of_this_node(failures.pop(own.rank)) | {"node": job.node if job else ""}
        elif job is not None:
            first = _of_another_node(job, result.exit_code)
    return {
        "version": VERSION,
        "program": name,
        "run_id": result.run_id,
        "state": result.state.value,
        "exit_code": result.exit_code,
        "message": result.message,
        "class": "" if result.exit_code == 0 else _class(result, first),
        "restarts": result.restart_count,
        "max_restarts": result.max_restarts,
        "first_failure": first,
        "other_failures": [_of_this_node(failure) for failure in failures.values()],
        "stopped_ranks": list(result.stopped),
        "lost_nodes": list(job.lost) if job is not None else [],
        "finished_nodes": list(job.finished) if job is not None else [],
        "bad_host": result.bad_host,
        "excluded_host": result.excluded_host,
        "node_checks": [dict(one) for one in result.node_checks],
        "incidents": [_incident(one) for one in result.incidents],
        "hangs": _verdicts(result.hangs),
        "stalls": _verdicts(result.stalls),
        "mismatches": _verdicts(result.mismatches),
        "hosts": _verdicts(result.hosts),
    }


def _verdicts(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "time": _wall_time(one["at"]),
            "round": one["round"],
            "message": one["message"],
            **({"nccl": one["nccl"]} if "nccl" in one else {}),
        }
        for one in found
    ]


def _incident(incident: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(incident)
    begun = fields.pop("begun")
    at = None if begun is None else _wall_time(begun)
    return {"time": at, "lost_steps": None} | fields


def _class(result: RunResult, first: dict[str, Any] | None) -> str:
    if first is not None and first["class"]:
        return str(first["class"])
    return report.class_of(result).partition(" (")[0]


def _of_this_node(failure: ProcessFailure) -> dict[str, Any]:
    return {
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "host": os.uname().nodename,
        "pid": failure.pid,
        "time": _time(failure.time),
        "class": failure.failure_class,
        "cause": failure.cause,
        "how": failure.how,
        "exit_code": failure.shell_code,
        "signal": failure.signal_name() if failure.exitcode < 0 else "",
        "error": failure.error(),
        "hint": failure.hint,
        "traceback": failure.traceback,
        "output": list(failure.stderr_tail),
        "log_dir": failure.log_dir,
    }


def _of_another_node(job: _C.JobResult, exit_code: int) -> dict[str, Any]:
    evidence = job.evidence
    return {
        "rank": job.rank if job.rank >= 0 else None,
        "node": job.node,
        "host": evidence.host if evidence else "",
        "time": _time(evidence.time) if evidence else "",
        "class": evidence.failure_class if evidence else "infrastructure",
        "cause": evidence.cause if evidence else "node lost" if job.node else "unknown",
        "how": job.message,
        "exit_code": exit_code,
        "error": evidence.error if evidence else "",
        "hint": evidence.hint if evidence else "",
        "output": evidence.output.splitlines() if evidence else [],
    }


def _wall_time(at: float) -> str:
    """``at``: by time.monotonic()."""
    return _time(time.time() - time.monotonic() + at)


def _time(timestamp: float) -> str:
    """ISO 8601 in UTC."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(timestamp))
    return f"{whole}.{int(timestamp % 1 * 1e6):06d}Z"
