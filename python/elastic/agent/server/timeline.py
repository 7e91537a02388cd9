"""The phases of an incident on one node: from the end of a round until its successor runs."""

from __future__ import annotations

from typing import Any

from elastic import _C

PHASES = ("detect", "stop", "rendezvous", "start")

_KINDS = _C.AgentEvent.Kind


class Timeline:
    """Follows an agent's events. All times are of the monotonic clock."""

    def __init__(self) -> None:
        self.incidents = 0
        self._round: _C.RoundInfo | None = None
        self._first_failure: dict[str, Any] | None = None  # in the current round
        self._open: dict[str, Any] | None = None  # the incident whose next round does not run yet
        self._marks: dict[str, float | None] = {}

    def update(self, event: _C.AgentEvent) -> dict[str, Any] | None:
        """The incident that the event completes, if it does."""
        if event.kind == _KINDS.WORKER_EXITED:
            self._note_exit(event)
        elif event.kind == _KINDS.RESTARTING:
            self._begin(event)
        elif event.kind == _KINDS.ROUND_STARTING:
            self._round = event.round
            self._first_failure = None
        elif event.kind == _KINDS.WORKERS_RUNNING and self._open is not None:
            return self._complete(event.at)
        elif event.kind == _KINDS.FINISHED and self._open is not None:
            return self._complete(None)
        return None

    def first_failure(self) -> dict[str, Any] | None:
        """The worker of this node that failed first in the current round."""
        return self._first_failure

    def _note_exit(self, event: _C.AgentEvent) -> None:
        ended = event.exit
        if ended.stopped_by_us or ended.shell_code == 0:
            return
        if self._first_failure is not None and self._first_failure["at"] <= ended.at:
            return
        self._first_failure = {
            "at": ended.at,
            "local_rank": event.local_rank,
            "pid": event.pid,
            "exit_code": ended.shell_code,
            "how": ended.describe(),
        }

    def _begin(self, event: _C.AgentEvent) -> None:
        self.incidents += 1
        ended = event.ended
        failure = self._first_failure
        ordered = ended.ordered if ended else None
        stopped = ended.stopped if ended else None
        self._marks = {
            "failed": failure["at"] if failure else None,
            "ordered": ordered,
            "stopped": stopped,
            "formed": event.at,
        }
        self._open = {
            "number": self.incidents,
            "round": self._round.round if self._round else None,
            "cause": (ended.cause if ended else "") or "unknown",
            "reason": event.message,
            "local_rank": failure["local_rank"] if failure else None,
            "pid": failure["pid"] if failure else None,
            "exit_code": failure["exit_code"] if failure else None,
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


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(end - begin, 0.0), 6)
