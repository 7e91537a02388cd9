"""Many changes of members in place: the soak, and a training whose accuracy is known."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from support.launching import Job, Process, free_endpoint, job_at, run_program
from support.paths import EXAMPLES, ROOT
from support.waiting import eventually

pytest.importorskip("torch")
pytest.importorskip("sklearn")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.alone]

CHANGES = 20
LIMIT_S = 900.0


@pytest.mark.parametrize("words", [(), ("--hosted",)], ids=["separate", "hosted"])
def test_random_losses_and_joins_leave_the_training_undisturbed(words: list[str]) -> None:
    command = [sys.executable, "-m", "bench.in_place_soak", f"--changes={CHANGES}", *words]
    run_program(command, cwd=ROOT, check=True, timeout=1800, grace_s=60.0)


def lines_until(node: Process, word: str) -> list[str]:
    assert node.stdout is not None
    seen = []
    for line in node.stdout:
        seen.append(line)
        if word in line:
            return seen
    raise AssertionError(("".join(seen), node.communicate()[1]))


def accuracy(line: str) -> float:
    found = re.search(r"accuracy ([0-9.]+)", line)
    assert found is not None, line
    return float(found[1])


def digits(nnodes: str, delay: float) -> Job:
    options = ("--on-membership-change=inplace", "--max-restarts=1000", "--warm",
               "--restart-backoff=0")  # fmt: skip
    program = [str(EXAMPLES / "train_inplace.py"), "--steps=400", f"--delay-per-step={delay}"]
    return job_at(free_endpoint(), nnodes, program, *options, deadline_s=LIMIT_S)


def test_digits_through_twenty_changes_have_the_accuracy_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    with digits("1", 0.0) as nodes:
        calm = accuracy(lines_until(nodes.start(), "finished")[-1])
        nodes.succeed()
    events = tmp_path / "events"
    with digits("2", 0.2) as nodes:
        first = nodes.start("--node-rank=0")
        nodes.start("--node-rank=1", f"--event-log={events}")
        lines_until(first, "started with 2 ranks")
        pid = -1
        for number in range(CHANGES):
            # The process of rank 0 stays, which reports the changes.
            pid = next_worker(events, pid)
            os.kill(pid, signal.SIGKILL)
            lines_until(first, f"round {number + 1} ")
        disturbed = accuracy(lines_until(first, "finished")[-1])
        nodes.succeed()
    assert disturbed == pytest.approx(calm, abs=0.005)


def next_worker(events: Path, former: int) -> int:
    """The newest process of the node that writes this event log, once it has changed."""
    started: list[int] = []

    def is_new() -> bool:
        whole = events.read_text().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        started[:] = [one["pid"] for one in lines if one["event"] == "worker_started"]
        return bool(started) and started[-1] != former

    eventually(is_new)
    return started[-1]
