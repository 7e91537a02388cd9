"""The phases of an incident on one node: from the end of a round to the next one's first step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic import _C
from elastic.text import between, duration

if TYPE_CHECKING:
    from elastic.agent.server.api import RunResult, WorkerGroup

# Until the workers run, and from there to the first step, if a worker reports steps.
PHASES = ("detect", "decide", "stop", "rendezvous", "start")
STEP_PHASES = ("interpreter", "imports", "process_group", "first_step")

INCIDENTS_KEPT = 64

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
    first_step: Any = None  # the fields of _C.AgentFirstStep
    check: Any = None  # a _C.AgentCheck
    failure: Any = None  # a _C.WorkerFailure


AgentEvent = _C.AgentEvent | Transition


class Sink:
    """Receives an agent's transitions, on the agent's thread."""

    def observe(self, event: AgentEvent, group: WorkerGroup) -> None: ...
    def incident(self, incident: dict[str, Any]) -> None: ...
    def first_step(self, step: dict[str, Any]) -> None: ...
    def conclude(self, result: RunResult, group: WorkerGroup) -> None: ...
    def close(self) -> None: ...


class Timeline:
    """Follows an agent's events. All times are of the monotonic clock."""

    def __init__(self) -> None:
        self.incidents = 0
        self.latest: deque[dict[str, Any]] = deque(maxlen=INCIDENTS_KEPT)
        self._round: _C.RoundInfo | None = None
        self._failed_at: float | None = None  # the first exit in the current round
        self._known_at: float | None = None  # when the agent has received the first one
        self._open: dict[str, Any] | None = None  # the incident whose next round does not run yet
        self._marks: dict[str, float | None] = {}
        self._running_at: float | None = None  # of the current round
        self._early: AgentEvent | None = None  # a first step before all workers run
        self._last: dict[str, Any] | None = None  # the incident before the current round

    def update(self, event: AgentEvent) -> dict[str, Any] | None:
        """The incident that the event completes, if it does."""
        if event.kind == _KINDS.WORKER_EXITED:
            self._note_exit(event)
        elif event.kind == _KINDS.RESTARTING:
            self._begin(event)
        elif event.kind == _KINDS.ROUND_STARTING:
            self._round = event.round
            self._failed_at = self._known_at = None
            self._running_at = self._early = None
        elif event.kind == _KINDS.WORKERS_RUNNING:
            self._running_at = event.at
            return None if self._open is None else self._complete(event.at)
        elif event.kind == _KINDS.FINISHED and self._open is not None:
            return self._complete(None)
        return None

    def first_step(self, event: AgentEvent) -> dict[str, Any] | None:
        """The way to the first step of a round, once that step was made and all workers run."""
        if event.kind == _KINDS.FIRST_STEP:
            self._early = event
        reported = self._early
        is_known = event.kind in (_KINDS.FIRST_STEP, _KINDS.WORKERS_RUNNING)
        if not is_known or reported is None or self._running_at is None:
            return None
        self._early = None
        facts = reported.first_step
        assert facts is not None
        marks = [
            self._running_at, facts.opened, facts.store_used, facts.store_filled, reported.at
        ]  # fmt: skip
        phases = dict(zip(STEP_PHASES, _consecutive(marks), strict=True))
        step = {
            "incident": None,
            "local_rank": reported.local_rank,
            "step": facts.step,
            "lost_steps": None if facts.lost_steps < 0 else facts.lost_steps,
            "phases": phases,
            "seconds": between(self._running_at, reported.at),
            "at": reported.at,
        }
        if self._last is not None:
            incident, self._last = self._last, None
            step["incident"] = incident["number"]
            incident["phases"] |= phases
            incident["lost_steps"] = step["lost_steps"]
            incident["seconds"] = between(incident["begun"], reported.at)
        return step

    def _note_exit(self, event: AgentEvent) -> None:
        ended = event.exit
        if ended.stopped_by_us or ended.shell_code == 0:
            return
        self._failed_at = ended.at if self._failed_at is None else min(self._failed_at, ended.at)
        self._known_at = event.at if self._known_at is None else self._known_at

    def _begin(self, event: AgentEvent) -> None:
        self.incidents += 1
        self._last = None
        ended = event.ended
        failure = ended.failures[0] if ended and ended.failures else None
        cause = (ended.cause if ended else "") or "unknown"
        failure_class, failure_cause = _class_and_cause(cause, failure)
        ordered = ended.ordered if ended else None
        stopped = ended.stopped if ended else None
        self._marks = {
            "failed": self._failed_at,
            "known": self._known_at,
            "ordered": ordered,
            "stopped": stopped,
            "formed": event.at,
        }
        self._open = {
            "number": self.incidents,
            "round": self._round.round if self._round else None,
            "in_place": bool(ended and ended.kept),
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
        known, formed = marks["known"], marks["formed"]
        if known is not None and ordered is not None:
            known = min(known, ordered)  # another node's failure was decided on before this one
        phases = {
            "detect": between(failed, known),
            "decide": between(known, ordered),
            "stop": between(ordered, stopped),
            "rendezvous": between(stopped if stopped is not None else ordered, formed),
            "start": between(formed, running),
        }
        begun = failed if failed is not None else ordered
        incident["next_round"] = self._round.round if self._round else None
        incident["resumed_step"] = getattr(self._round, "resumed_step", None)
        incident["phases"] = phases
        incident["seconds"] = between(begun, running)
        incident["begun"] = begun
        self._last = incident
        # Its later phases are added when they are known; receivers of this one have seen these.
        self.latest.append(incident)
        return incident | {"phases": dict(phases)}


def warm_hint(step: dict[str, Any]) -> str | None:
    """What ``--warm`` would have saved of a restart whose first step is this one; None: little."""
    phases, whole = step["phases"], step["seconds"] or 0.0
    start = sum(phases[name] or 0.0 for name in ("interpreter", "imports"))
    if step["incident"] is None or start < 1.0 or start < whole / 2:
        return None
    return (
        f"the workers needed {duration(round(whole, 1))} until their first step after the "
        f"restart, {duration(round(start, 1))} of it to start Python and import modules; --warm "
        "avoids that (elastic-launch help warm-workers)"
    )


def _class_and_cause(cause: str, failure: Any) -> tuple[str | None, str | None]:
    """Class and cause of the failure that ended the round, as far as this node knows them."""
    if cause == "node_lost":
        return "infrastructure", "node lost"
    if cause == "worker_failed" and failure is not None:
        return failure.evidence.failure_class, failure.evidence.cause
    return None, None


def _consecutive(marks: list[float | None]) -> list[float | None]:
    """The time from each mark to the next known one; a missing mark's time is in the phase after.

    A mark that is earlier than the one before it ends a phase of no time: one worker may be faster
    than another, and a script may open its channel after it has set up its process group. One that
    is later than the last one, as the keys of a slower worker are, ends its phase there.
    """
    since, end = marks[0], marks[-1]
    phases: list[float | None] = []
    for mark in marks[1:]:
        at = mark if mark is None or end is None else min(mark, end)
        phases.append(between(since, at))
        if at is not None and since is not None:
            since = max(since, at)
    return phases
