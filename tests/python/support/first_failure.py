"""Two ranks on different nodes fail shortly after one another: which one do the nodes report?

PYTHONPATH=tests/python python -m support.first_failure --trials 100

prints how often the report was right.

In each trial rank 0 or 1, on a node of its own, fails first, in one of four ways; the other rank
fails 5 to 50 ms later. Some culprits raise first and die last.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from support.launching import free_endpoint, job_at
from support.paths import STUBS

WORKER = STUBS / "stub_first_failure.py"
WAYS = ("exit", "killed", "raise", "record")


class Trial(NamedTuple):
    way: str
    culprit: int
    gap_ms: float  # between the two failures, as the workers measured it
    reported: tuple[int | None, ...]  # the first rank in the report of each node

    def is_right(self) -> bool:
        return all(rank == self.culprit for rank in self.reported)


def run(way: str, culprit: int, delay: float) -> Trial:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = [str(WORKER), name, str(culprit), way, str(delay)]
        with job_at(free_endpoint(), "2", program, "--shutdown-timeout=5") as nodes:
            for node in (0, 1):
                nodes.start(f"--node-rank={node}", f"--result-json={folder}/result{node}")
            nodes.finish()
        results = [json.loads((folder / f"result{node}").read_text()) for node in (0, 1)]
        times = [(folder / f"failed{rank}") for rank in (culprit, 1 - culprit)]
        # A worker that was stopped before its time has not failed.
        first, second = (float(path.read_text()) if path.exists() else 1e6 for path in times)
    reported = tuple((result["first_failure"] or {}).get("rank") for result in results)
    return Trial(way, culprit, 1e3 * (second - first), reported)


def trials(count: int, seed: int = 1, least_ms: float = 5, most_ms: float = 50) -> list[Trial]:
    """Trials in which the culprit failed first, by at least ``least_ms``."""
    chance = random.Random(seed)
    found: list[Trial] = []
    for _ in range(3 * count + 10):
        if len(found) == count:
            return found
        way = WAYS[len(found) % len(WAYS)]
        trial = run(way, chance.randrange(2), chance.uniform(least_ms / 1e3, most_ms / 1e3))
        if trial.gap_ms >= least_ms:
            found.append(trial)
    raise RuntimeError("the workers did not fail at the planned times: the machine is too busy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = trials(arguments.trials, arguments.seed)
    for trial in found:
        if not trial.is_right():
            print(f"wrong: {trial}")
    right = sum(trial.is_right() for trial in found)
    print(f"{right} of {len(found)} reports were right")
    return 0 if right >= 0.99 * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
