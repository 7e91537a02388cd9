"""Why this process is being stopped, and why the round before it ended."""

from __future__ import annotations

import dataclasses

from elastic import _environment
from elastic.worker._channel import calls

_REASON = "; reason="


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why workers are stopped. ``str()`` is one sentence.

    ``kind``: ``worker-failed``, ``hang``, ``node-lost``, ``node-left``, ``members-changed``,
    ``preempted``, ``drained``, ``evicted``, ``coordinator-lost`` or ``job-ended``. ``rank``,
    ``exit_code``: of the worker that failed first; None: no worker failed. ``node``: its node, or
    the one that was lost or has left. ``failure_class``: who has to act on the failure.
    """

    kind: str
    rank: int | None = None
    node: str = ""
    exit_code: int | None = None
    failure_class: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return self.reason or self.kind


@dataclasses.dataclass(frozen=True)
class Restart:
    """Why this round follows another one. False in the first round of a job.

    ``same_failures``: how many rounds in a row ended by the same failure within a minute of their
    start.
    """

    cause: Cause | None = None
    same_failures: int = 0

    def __bool__(self) -> bool:
        return self.cause is not None


def stop_reason() -> Cause | None:
    """Why this process is being stopped; None: it is not.

    Known before SIGTERM is delivered, when ``should_stop()`` has returned True, and when the round
    of ``membership()`` is over.
    """
    text = calls.stop_reason()
    return None if text is None else parse(text)


def restart() -> Restart:
    """Why this round follows another one: the same on all ranks of all nodes."""
    text = _environment.get("ELASTIC_RESTART_CAUSE")
    failures = _environment.get("ELASTIC_SAME_FAILURES")
    return Restart(
        parse(text) if text else None,
        int(failures) if failures.isdecimal() else 0,
    )


def parse(text: str) -> Cause:
    """Reads ``"kind; name=value; …; reason=…"``."""
    head, _, reason = text.partition(_REASON)
    kind, *items = head.split("; ")
    values = dict(item.partition("=")[::2] for item in items)

    def number(name: str) -> int | None:
        return int(values[name]) if values.get(name, "").isdecimal() else None

    return Cause(
        kind=kind,
        rank=number("rank"),
        node=values.get("node", ""),
        exit_code=number("exit_code"),
        failure_class=values.get("class", ""),
        reason=reason,
    )
