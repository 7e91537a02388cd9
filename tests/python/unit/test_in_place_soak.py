"""What the soak of changes in place finds in the stamps of its workers."""

from __future__ import annotations

import pytest

from bench.in_place_soak.changes import Stamp, faults, members, parse


def step(number: int, round: int, rank: int = 0, pid: int = 7, world: int = 1) -> Stamp:
    return Stamp("step", rank, pid, round, rank, world, number, float(number))


CALM = [step(1, 0), step(2, 0), step(3, 1), step(4, 1)]


@pytest.mark.parametrize(
    ("stamps", "found"),
    [
        (CALM, ""),
        ([*CALM, step(1, 1)._replace(at=9.0)], "round 1 repeats steps 1 to 2"),
        # Processes that have lost their state begin where the last checkpoint, or nothing, is.
        ([step(1, 0), step(2, 0), step(1, 1, pid=8)._replace(at=9.0)], ""),
        ([step(1, 0), step(3, 0), step(3, 1)._replace(at=2.0)], "round 1 began 1.000 s before"),
        ([step(1, 0), step(2, 0, pid=8)], "round 0: a rank had several processes: {0: {8, 7}}"),
        ([Stamp("wrong", 2, 7, 5, 0, 1, 3, 1.0, "the sum")], "node 2, round 5: the sum"),
        ([Stamp("different", 2, 7, 5, 0, 1, 3, 1.0)], "other parameters than an undisturbed run"),
    ],
)
def test_a_broken_rule_is_one_sentence(stamps: list[Stamp], found: str) -> None:
    sentences = faults(stamps)
    assert len(sentences) == bool(found), sentences
    assert all(found in sentence for sentence in sentences)


def test_a_round_goes_on_when_all_its_ranks_do() -> None:
    first = [step(n, 4, world=2) for n in (1, 2, 3)]
    second = [step(n, 4, rank=1, pid=8, world=2) for n in (1, 2, 3)]
    assert members([*first, *second[:2]]) == {}
    assert [s.pid for s in members([*first, *second]).values()] == [7, 8]
    assert members([*first, *second], after=1.0) == {}
    assert members([*first, *second, step(4, 5)]) == {}


def test_stamps_are_lines() -> None:
    line = "wrong 2 71 5 0 3 12 1.5 the sum of ones is 2\nstep 2 71 5 0 3 13 2.5\n"
    assert parse(line)[0].text == "the sum of ones is 2"
    assert parse(line)[1] == Stamp("step", 2, 71, 5, 0, 3, 13, 2.5)
