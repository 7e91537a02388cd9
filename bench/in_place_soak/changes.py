"""What the stamps of the workers show. Nothing here touches a process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

STEPS = 3  # of every rank, before a round counts as going on


class Stamp(NamedTuple):
    kind: str
    node: int
    pid: int
    round: int
    rank: int
    world: int
    step: int
    at: float
    text: str = ""


def parse(text: str) -> list[Stamp]:
    stamps = []
    for line in text.splitlines():
        kind, node, pid, round_, rank, world, step, at, *rest = line.split(maxsplit=8)
        stamps.append(
            Stamp(
                kind, int(node), int(pid), int(round_), int(rank), int(world), int(step), float(at),
                *rest,
            )
        )  # fmt: skip
    return stamps


def members(stamps: Sequence[Stamp], after: float = 0.0) -> dict[int, Stamp]:
    """The ranks of the last round, if all of them have made some steps since then; else none."""
    last = max((s.round for s in stamps), default=-1)
    steps: dict[int, list[Stamp]] = defaultdict(list)
    for s in stamps:
        if s.kind == "step" and s.round == last and s.at > after:
            steps[s.rank].append(s)
    world = max((made[-1].world for made in steps.values()), default=0)
    goes_on = len(steps) == world and all(len(made) >= STEPS for made in steps.values())
    return {rank: made[-1] for rank, made in sorted(steps.items())} if goes_on else {}


def faults(stamps: Sequence[Stamp]) -> list[str]:
    """Every rule that was broken, in a sentence."""
    found = [f"node {s.node}, round {s.round}: {s.text}" for s in stamps if s.kind == "wrong"]
    found += [
        f"node {s.node} has other parameters than an undisturbed run of {s.step} steps"
        for s in stamps
        if s.kind == "different"
    ]
    rounds: dict[int, list[Stamp]] = defaultdict(list)
    for s in stamps:
        if s.kind == "step":
            rounds[s.round].append(s)
    former: list[Stamp] = []
    for number in sorted(rounds):
        made = rounds[number]
        ranks: dict[int, set[int]] = defaultdict(set)
        for s in made:
            ranks[s.rank].add(s.pid)
        if any(len(pids) > 1 for pids in ranks.values()):
            found.append(f"round {number}: a rank had several processes: {dict(ranks)}")
        if former:
            found += _between(former, made, number)
        former = made
    return found


def _between(former: list[Stamp], made: list[Stamp], number: int) -> list[str]:
    found = []
    # A rank of which all peers are lost completes no step with them; alone it may still stamp one.
    late = max(s.at for s in former) - min(s.at for s in made)
    if late > 0:
        found.append(f"round {number} began {late:.3f} s before the last step of the one before")
    is_kept = bool({s.pid for s in former} & {s.pid for s in made})
    furthest, first = max(s.step for s in former), min(s.step for s in made)
    # The stamp has the number of complete steps. The one that was furthest may be lost.
    if is_kept and first < furthest:
        found.append(f"round {number} repeats steps {first} to {furthest}")
    return found
