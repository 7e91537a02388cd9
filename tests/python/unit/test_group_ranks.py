"""How a worker writes the ranks of a process group; core reads it (collective_verdict_test.cc)."""

from __future__ import annotations

import random

import pytest
from elastic._site.elastic_hook import _ranges


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1, 2, 3, 8], "0-3,8"),
        ([0, 8, 16], "0,8,16"),
        ([0, 8, 16, 24], "0-24/8"),
        ([3, 4, 16, 32, 48, 64, 65], "3-4,16-64/16,65"),
        (list(range(5, 4096, 8)), "5-4093/8"),
    ],
)
def test_ranks_are_written_as_core_reads_them(ranks: list[int], text: str) -> None:
    assert _ranges(ranks) == text


def test_no_rank_is_lost() -> None:
    chance = random.Random(1)
    for _ in range(500):
        ranks = sorted(chance.sample(range(60), chance.randrange(40)))
        found = []
        for part in _ranges(ranks).split(",") if ranks else []:
            span, _, step = part.partition("/")
            first, _, last = span.partition("-")
            found += range(int(first), int(last or first) + 1, int(step or 1))
        assert found == ranks
