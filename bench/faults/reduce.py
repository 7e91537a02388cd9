"""What a run shows, computed from the stamps of its workers. Nothing here touches a process."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RECOVER, CONTINUE, END = "recover", "continue", "end"
OK, WRONG, HANG, NOT_APPLICABLE = "ok", "wrong", "hang", "not applicable"
STEPS = 5  # of every rank, before training counts as going on
# Why a run in which training did not go on, or not with the members that it should have, is not ok.
NO_REACTION, ENDED, UNTOUCHED, SUCCESS = (
    "no reaction before the deadline",
    "the job ended with",
    "training went on as if nothing had happened",
    "an agent reported success",
)


class Stamp(NamedTuple):
    kind: str  # start, joined, step, fault, done
    node: int
    pid: int
    rank: int
    world: int
    at: float


class Exit(NamedTuple):
    code: int
    at: float


class Named(NamedTuple):
    """A worker that the log of a launcher calls failed."""

    at: float
    pid: int


@dataclass(slots=True)
class Harm:
    """What the fault has done, by its own account."""

    at: float = 0.0
    until: float = 0.0  # when the fault ended, where it is a passing one
    workers: set[int] = field(default_factory=set)  # pids
    nodes: set[int] = field(default_factory=set)  # not expected to go on
    off: set[int] = field(default_factory=set)  # powered off: their processes do not count
    culprit: int | None = None  # the pid that a report should name


@dataclass(slots=True)
class Observed:
    harm: Harm
    stamps: list[Stamp]
    ended: dict[int, float]  # workers
    exits: dict[int, Exit]  # agents by node, of those that have ended by themselves
    nodes: set[int]  # of the agents that were started
    named: list[Named] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # processes that outlived their agent
    done_at: float = math.inf  # when the job was told to end: what follows is no reaction


@dataclass(slots=True, kw_only=True)
class Measures:
    """Seconds after the fault; None: it did not happen."""

    outcome: str
    why: str = ""
    detected: float | None = None
    stopped: float | None = None
    round: float | None = None
    running: float | None = None
    first_step: float | None = None
    orphans: int = 0
    culprit: str = ""  # right, wrong or none; "" if the scene has no culprit
    codes: dict[str, int | None] = field(default_factory=dict)


def parse_stamps(text: str) -> list[Stamp]:
    found = []
    for line in text.splitlines():
        kind, node, pid, rank, world, at = line.split()
        found.append(Stamp(kind, int(node), int(pid), int(rank), int(world), float(at)))
    return found


def survivors(seen: Observed) -> set[int]:
    return seen.nodes - seen.harm.nodes


def is_recovered(seen: Observed, world: int | None) -> bool:
    """New workers train: every rank of one world has made some steps, and none has ended."""
    return is_training(seen, world, without=_old(seen))


def is_training(seen: Observed, world: int | None, without: Container[int] = ()) -> bool:
    steps: dict[tuple[int, int, int], int] = {}
    for stamp in seen.stamps:
        if stamp.kind == "step" and stamp.pid not in without and stamp.pid not in seen.ended:
            key = (stamp.world, stamp.rank, stamp.pid)
            steps[key] = steps.get(key, 0) + 1
    for size in {key[0] for key in steps}:
        ranks = {rank for (of, rank, _), count in steps.items() if of == size and count >= STEPS}
        if len(ranks) == size and world in (None, size):
            return True
    return False


def is_continued(seen: Observed) -> bool:
    """The workers of before the fault train on."""
    old = _old(seen)
    after = max(seen.harm.at, seen.harm.until)
    counts = dict.fromkeys(old, 0)
    for stamp in seen.stamps:
        if stamp.kind == "step" and stamp.pid in counts and stamp.at > after:
            counts[stamp.pid] += 1
    return bool(counts) and min(counts.values()) >= STEPS and not old & set(seen.ended)


def has_ended(seen: Observed) -> bool:
    return survivors(seen) <= set(seen.exits)


def measure(
    seen: Observed, expected: Sequence[str], reached: str, *, is_finished: bool = True
) -> Measures:
    """`reached`: what the run came to before the deadline (recover, continue, end; "": nothing).

    `is_finished`: the survivors' agents ended in time after that.
    """
    found = _times(seen)
    found.orphans = len(seen.left)
    found.culprit = _culprit(seen)
    found.codes = {
        str(node): seen.exits[node].code if node in seen.exits else None
        for node in sorted(seen.nodes)
    }
    codes = [seen.exits[node].code for node in sorted(survivors(seen)) if node in seen.exits]
    if not reached:
        found.outcome, found.why = HANG, NO_REACTION
    elif not is_finished:
        found.outcome, found.why = HANG, "training went on, but the job did not end"
    elif reached not in expected:
        found.why = {
            END: f"{ENDED} {', '.join(map(str, codes))}",
            RECOVER: "the workers were restarted",
            CONTINUE: UNTOUCHED,
        }[reached]
        found.outcome = WRONG
    elif reached == END and 0 in codes:
        found.outcome, found.why = WRONG, SUCCESS
    elif reached != END and any(codes):
        found.outcome = WRONG
        found.why = f"training went on, but agents exited with {', '.join(map(str, codes))}"
    elif seen.left:
        found.outcome = WRONG
        found.why = f"{len(seen.left)} processes were left behind: {', '.join(seen.left)}"
    elif found.culprit == "wrong":
        found.outcome, found.why = WRONG, "another process was named as the first failure"
    return found


def has_trained(run: Mapping[str, Any]) -> bool:
    """Whether training went on after the fault, in a result of a scene that expects that."""
    return not str(run["why"]).startswith((NO_REACTION, ENDED, UNTOUCHED, SUCCESS))


def _old(seen: Observed) -> set[int]:
    return {s.pid for s in seen.stamps if s.kind == "start" and s.at < seen.harm.at}


def _times(seen: Observed) -> Measures:
    harm, old = seen.harm, _old(seen)
    bystanders = {
        s.pid
        for s in seen.stamps
        if s.pid in old and s.pid not in harm.workers and s.node not in harm.nodes
    }
    new = [s for s in seen.stamps if s.kind == "start" and s.pid not in old]
    ended = {pid: at for pid, at in seen.ended.items() if at < seen.done_at}
    ends = [at for pid, at in ended.items() if pid in bystanders and at >= harm.at]
    reactions = [*ends, *(s.at for s in new)]
    steps = [s for s in seen.stamps if s.kind == "step" and s.pid not in old]
    first = min(steps, key=lambda s: s.at, default=None)
    running = None
    if first is not None:
        group = {s.pid for s in steps if s.world == first.world}
        running = max(s.at for s in new if s.pid in group)
    is_stopped = bool(bystanders) and bystanders <= set(ended)

    def after(at: float | None) -> float | None:
        return None if at is None else round(at - harm.at, 3)

    return Measures(
        outcome=OK,
        detected=after(min(reactions, default=None)),
        stopped=after(max(ends)) if is_stopped and ends else None,
        round=after(min((s.at for s in new), default=None)),
        running=after(running),
        first_step=after(first.at if first is not None else None),
    )


def _culprit(seen: Observed) -> str:
    if seen.harm.culprit is None:
        return ""
    named = [n for n in seen.named if n.at >= seen.harm.at]
    if not named:
        return "none"
    return "right" if min(named).pid == seen.harm.culprit else "wrong"
