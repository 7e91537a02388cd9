"""The phases of an incident on one node: from the end of a round until its successor runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from elastic import _C

PHASES = ("detect", "stop", "rendezvous", "start")

_KINDS = _C.AgentEvent.Kind


class Transition(NamedTuple):
    """A transition of an agent in Python, with the fields of the native agent's event."""

    kind: _C.AgentEvent.Kind
    at: float  # in the time of time.monotonic()
    state: _C.AgentState
    round: Any = None  # the fields of _C.RoundInfo
    local_rank: int = -1
    pid: int = -1
    exit: Any = None  # a _C.WorkerExit
    log_dir: str = ""
    message: str = ""
    ended: Any = None  # the fields of _C.AgentRoundEnd
    coordinator: Any = None  # a _C.CoordinatorInfo
    moved: Any = None  # a _C.CoordinatorMove


AgentEvent = _C.AgentEvent | Transition


class Timeline:
    """Follows an agent's events. All times are of the monotonic clock."""

    def __init__(self) -> None:
        self.incidents = 0
        self._round: _C.RoundInfo | None = None
        self._failed_at: float | None = None  # the first exit in the current round
        self._open: dict[str, Any] | None = None  # the incident whose next round does not run yet
        self._marks: dict[str, float | None] = {}

    def update(self, event: AgentEvent) -> dict[str, Any] | None:
        """The incident that the event completes, if it does."""
        if event.kind == _KINDS.WORKER_EXITED:
            self._note_exit(event)
        elif event.kind == _KINDS.RESTARTING:
            self._begin(event)
        elif event.kind == _KINDS.ROUND_STARTING:
            self._round = event.round
            self._failed_at = None
        elif event.kind == _KINDS.WORKERS_RUNNING and self._open is not None:
            return self._complete(event.at)
        elif event.kind == _KINDS.FINISHED and self._open is not None:
            return self._complete(None)
        return None

    def _note_exit(self, event: AgentEvent) -> None:
        ended = event.exit
        if ended.stopped_by_us or ended.shell_code == 0:
            return
        self._failed_at = ended.at if self._failed_at is None else min(self._failed_at, ended.at)

    def _begin(self, event: AgentEvent) -> None:
        self.incidents += 1
        ended = event.ended
        failure = ended.failures[0] if ended and ended.failures else None
        cause = (ended.cause if ended else "") or "unknown"
        failure_class, failure_cause = _class_and_cause(cause, failure)
        ordered = ended.ordered if ended else None
        stopped = ended.stopped if ended else None
        self._marks = {
            "failed": self._failed_at,
            "ordered": ordered,
            "stopped": stopped,
            "formed": event.at,
        }
        self._open = {
            "number": self.incidents,
            "round": self._round.round if self._round else None,
            "cause": cause,
            "reason": event.message,
            "failure_class": failure_class,
            "failure_cause": failure_cause,
            "local_rank": failure.local_rank if failure else None,
            "pid": failure.pid if failure else None,
            "exit_code": failure.exit_code if failure else None,
        }

    def _complete(self, running: float | None) -> dict[str, Any]:
        assert self._open is not None
        incident, self._open = self._open, None
        marks = self._marks
        failed, ordered, stopped = marks["failed"], marks["ordered"], marks["stopped"]
        formed = marks["formed"]
        phases = {
            "detect": _between(failed, ordered),
            "stop": _between(ordered, stopped),
            "rendezvous": _between(stopped if stopped is not None else ordered, formed),
            "start": _between(formed, running),
        }
        begun = failed if failed is not None else ordered
        incident["next_round"] = self._round.round if self._round else None
        incident["phases"] = phases
        incident["seconds"] = _between(begun, running)
        incident["begun"] = begun
        return incident


def _class_and_cause(cause: str, failure: Any) -> tuple[str | None, str | None]:
    """Of the failure that ended the round, as far as this node knows it."""
    if cause == "node_lost":
        return "infrastructure", "node lost"
    if cause == "worker_failed" and failure is not None:
        return failure.evidence.failure_class, failure.evidence.cause
    return None, None


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(end - begin, 0.0), 6)
