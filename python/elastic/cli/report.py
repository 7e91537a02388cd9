"""The failure report: the worker that failed first, how it ended, and its log files."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

from elastic import _C
from elastic.agent.server.api import own_failure
from elastic.multiprocessing.errors.evidence import TAIL_LINES_MAX, ProcessFailure
from elastic.text import duration, plural

if TYPE_CHECKING:
    from elastic.agent.server.api import RunResult


def format_report(name: str, result: RunResult, is_output_shown: bool = False) -> str:
    """The text that is printed at the end of a failed job, without a final newline.

    ``is_output_shown``: the only worker's stderr is on the console, just above, and not repeated.
    """
    failures = dict(result.failures)
    job = result.job
    is_partial = result.exit_code == _C.EXIT_PARTIAL
    if not failures and job is None and not is_partial:
        hint = _hint(result)
        return f"{result.message}; {hint}" if hint else result.message
    run = ("run", f"{result.run_id}, {_restarts(result)}")
    if is_stopped_by_request(result):
        restarts = f", {_restarts(result)}" if result.max_restarts else ""
        run = ("run", f"{result.run_id}{restarts}")
        return "\n".join([f"{name}: {result.message}", *_facts(run), *_incidents(result)])
    first = own_failure(result)
    if job is not None and first is None:
        evidence = job.evidence
        lines = [f"{name} failed: {result.message}"]
        lines += _facts(
            ("time", _local_time(evidence.time) if evidence else ""),
            ("host", evidence.host if evidence else ""),
            ("node", job.node),
            run,
            ("rule", _rule(result)),
            ("class", class_of(result)),
            ("error", evidence.error if evidence else ""),
            ("hint", evidence.hint if evidence else ""),
        )
        lines += _quote("last lines of its stderr", evidence.output if evidence else "")
        first_at = None
    elif first is None or (job is None and first.started and result.exit_code != first.shell_code):
        # The exit code stands for a reason of the launcher: a lost coordinator, a signal, ….
        lines = [f"{name} failed: {result.message}"]
        lines += _facts(run, ("class", class_of(result)), ("hint", _hint(result)))
        first_at = None
    else:
        failures.pop(first.rank)
        first_at = first.time
        lines = [f"{name} failed: {first.describe()}"]
        lines += _facts(
            ("time", _local_time(first.time)),
            ("host", os.uname().nodename),
            ("node", job.node if job else ""),
            run,
            ("rule", _rule(result)),
            ("class", f"{first.failure_class} ({first.cause})"),
            ("error", first.error_line()),
            ("hint", first.hint),
            ("logs", first.log_dir),
        )
        lines += [] if is_output_shown else _evidence(first)
    if job is not None and job.lost:
        lines.append(f"lost: {', '.join(job.lost)}")
    if job is not None and job.finished:
        lines.append(f"exited with code 0: all ranks of {', '.join(job.finished)}")
    lines += _incidents(result)
    for one in result.node_checks:
        if one["verdict"] != "good":
            lines.append(f"check {one['check']} of this host: {one['verdict']}: {one['reason']}")
    for other in failures.values():
        lines.append(f"also failed{_when(other, first_at)}: {other.describe()}")
        if other.error():
            lines.append(f"    {'error':<8}{other.error_line()}")
    lines += _ended_before(result, first_at)
    if result.stopped:
        ranks = ", ".join(map(str, result.stopped))
        noun = "rank" if len(result.stopped) == 1 else "ranks"
        lines.append(f"stopped by the launcher, not failed: {noun} {ranks}")
    return "\n".join(lines)


def _rule(result: RunResult) -> str:
    """What of the failure policy has ended the job; "": nothing has."""
    found = re.search(
        r"; (rule \d+ \(line \d+\)|the policy function \S+|--\S+|\d+ rounds? ended without a step)"
        r"(?: of the failure policy)? (.*)",
        result.message,
    )
    return f"{found[1]} {found[2]}" if found else ""


def _ended_before(result: RunResult, first_at: float | None) -> list[str]:
    """The ranks whose exit with 0 may be why the others failed."""
    if first_at is None:  # on another node, with another clock
        return []
    before = sorted((first_at - at, rank) for rank, at in result.succeeded.items() if at < first_at)
    if not before:
        return []
    ranks = ", ".join(str(rank) for _, rank in before)
    since = f"{before[0][0]:.3f} s earlier" if len(before) == 1 else "earlier"
    return [f"exited with code 0 {since}: {'rank' if len(before) == 1 else 'ranks'} {ranks}"]


INCIDENTS_SHOWN = 3
_STOPPED_BY_SIGNAL = 128 + signal.SIGTERM


def _incidents(result: RunResult) -> list[str]:
    """How long the latest restarts took, in the phases of this node."""
    lines = []
    for one in result.incidents[-INCIDENTS_SHOWN:]:
        if one["seconds"] is None:
            continue
        reached = "reached its first step" if "lost_steps" in one else "was running"
        since = "after the failure"
        names: dict[str, str] = {}
        known = {name: value for name, value in one["phases"].items() if value is not None}
        if one.get("in_place", False):
            reached, since = "training again", "after the change"
            names = {"stop": "left the old round in", "rendezvous": "new round in"}
            known.pop("start", None)  # no worker was started
        phases = ", ".join(
            f"{names.get(name, name.replace('_', ' '))} {duration(seconds)}"
            for name, seconds in known.items()
        )
        text = f"{reached} {duration(one['seconds'])} {since} ({phases})"
        if one.get("resumed_step") is not None:
            text += f", continued at step {one['resumed_step']} from memory"
        if one.get("lost_steps"):
            text += f", {plural(one['lost_steps'], 'step')} repeated"
        lines += _facts((f"round {one['next_round']}", text))
    return lines


def is_stopped_by_request(result: RunResult) -> bool:
    """Whether a drain ended the job, with an agreed step or at its deadline."""
    if result.exit_code == _C.EXIT_STOPPED_AT_STEP:
        return not worker_failed(result)
    if result.exit_code != _STOPPED_BY_SIGNAL or result.job is None:
        return False
    return result.job.cause == _C.JobCause.REQUESTED


def _hint(result: RunResult) -> str:
    if result.exit_code != _C.EXIT_COORDINATOR_LOST or worker_failed(result):
        return ""
    return (
        "the launcher that served it has ended, or its host is down or cut off: read its log, then "
        "start the job again; a job on three hosts or more can outlive that host (elastic-launch "
        "help high-availability)"
    )


def worker_failed(result: RunResult) -> bool:
    """Whether a worker ended the job: its exit code may be the same as one of the launcher's."""
    return bool(result.failures) or (
        result.job is not None and result.job.cause == _C.JobCause.WORKER
    )


def class_of(result: RunResult) -> str:
    """Who has to act, and the cause, if no worker of this node failed first."""
    job = result.job
    if job is not None and job.evidence is not None:
        return f"{job.evidence.failure_class} ({job.evidence.cause})"
    if job is not None and job.rank < 0 and job.node:
        return "infrastructure (node lost)"
    return _CLASSES.get(result.exit_code, "")


_CLASSES = {
    _C.EXIT_USAGE: "user input",
    _C.EXIT_SUPERVISION_LOST: "platform",
    _C.EXIT_CANNOT_START: "user input",
    _C.EXIT_CANNOT_SERVE: "user input",
    _C.EXIT_CANNOT_LOG: "platform",
    _C.EXIT_JOIN_TIMED_OUT: "infrastructure",
    _C.EXIT_REJECTED: "user input",
    _C.EXIT_COORDINATOR_LOST: "infrastructure",
    _C.EXIT_NODE_LOST: "infrastructure (node lost)",
    _C.EXIT_PARTIAL: "user worker (partial exit)",
    _C.EXIT_BAD_HOST: "infrastructure (bad host)",
}


def _when(failure: ProcessFailure, first_at: float | None) -> str:
    if first_at is None:  # on another node, with another clock
        return " here"
    later = failure.time - first_at
    return f", {later:.3f} s later" if later >= 0 else f", {-later:.3f} s earlier"


def _facts(*facts: tuple[str, str]) -> list[str]:
    return [f"    {label:<7} {text}" for label, text in facts if text]


def _local_time(timestamp: float) -> str:
    local = time.localtime(timestamp)
    milliseconds = int(timestamp % 1 * 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', local)}.{milliseconds:03d} {local.tm_zone}"


def _evidence(failure: ProcessFailure) -> list[str]:
    if failure.stderr_tail:
        return _quote("last lines of its stderr", "\n".join(failure.stderr_tail))
    return _quote("traceback", "\n".join(failure.traceback.splitlines()[-TAIL_LINES_MAX:]))


def _quote(title: str, text: str) -> list[str]:
    if not text:
        return []
    return [f"    {title}:", *(f"      | {line}" for line in text.split("\n"))]


def _restarts(result: RunResult) -> str:
    return _C.describe_restarts_used(result.restart_count, result.max_restarts)
