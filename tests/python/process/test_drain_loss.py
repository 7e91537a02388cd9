"""Stops at an agreed step while the coordinator is lost: one step for all ranks, or none.

Three nodes on loopback addresses keep the job's record (``voters=3``), so that the job continues
without the node that coordinates it. ``ELASTIC_DRAIN_LOSSES=100 python -m pytest
tests/python/process/test_drain_loss.py`` gives so many losses at random moments of the agreement.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.launching import DEADLINE_S, free_endpoint, job_at
from support.stopping import EXIT_STOPPED, MANY, STUB, stops
from support.succession import REPLICATED, Nodes
from support.waiting import stall_for_test

LOSSES = int(os.environ.get("ELASTIC_DRAIN_LOSSES", "2"))
HOST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@contextmanager
def stepping_job(directory: Path, pace: str) -> Iterator[Nodes]:
    """Three nodes with one rank each that have stepped together; the first one coordinates."""
    program = [STUB, str(directory), MANY, pace]
    with job_at(free_endpoint(), "2:3", program, "--max-restarts=0", "--drain=100") as job:
        nodes = Nodes(job)
        nodes.start(1, 2, 3)
        for node in job.nodes:
            assert node.stdout.readline().endswith(" runs\n")
        nodes.await_log(HOST, REPLICATED)
        yield nodes


def check(nodes: Nodes, directory: Path, survivors: tuple[str, ...]) -> None:
    """Every surviving node ended with 80, and in each round all ranks stopped at one step."""
    for address in survivors:
        nodes.processes[address].wait(DEADLINE_S)
    logs = "\n".join(nodes.log(address) for address in survivors)
    assert {nodes.processes[address].returncode for address in survivors} == {EXIT_STOPPED}, logs
    at = stops(directory)
    assert all(name.startswith("stopped.") for name in at), at
    for number in {name.split(".")[1] for name in at}:
        steps = {step for name, step in at.items() if name.split(".")[1] == number}
        assert len(steps) == 1, (at, logs)
    last = max(int(name.split(".")[1]) for name in at)
    in_last = [name for name in at if name.split(".")[1] == str(last)]
    assert len(in_last) == (2 if last else 3), (at, logs)


@pytest.mark.parametrize("turn", range(LOSSES))
def test_coordinator_is_lost_while_the_ranks_agree(turn: int, tmp_path: Path) -> None:
    chance = random.Random(turn)
    with stepping_job(tmp_path, chance.choice(["0", "1", "20"])) as nodes:
        nodes.processes[chance.choice((SECOND, THIRD))].send_signal(signal.SIGTERM)
        # The agreement takes some milliseconds: before it, between acceptance and commit, after it.
        stall_for_test(chance.uniform(0, 0.03))
        if turn % 2:
            nodes.processes[HOST].kill()  # the agent alone: its guardian ends the workers
            nodes.processes[HOST].wait(DEADLINE_S)
        else:
            nodes.kill(HOST)
        check(nodes, tmp_path, (SECOND, THIRD))


def test_node_that_coordinates_receives_the_notice_itself(tmp_path: Path) -> None:
    with stepping_job(tmp_path, "1") as nodes:
        nodes.processes[HOST].send_signal(signal.SIGTERM)
        check(nodes, tmp_path, (HOST, SECOND, THIRD))


def test_notice_after_the_coordinator_was_replaced(tmp_path: Path) -> None:
    with stepping_job(tmp_path, "1") as nodes:
        nodes.kill(HOST)
        for address in (SECOND, THIRD):
            stdout = nodes.processes[address].stdout
            assert stdout is not None
            assert any(line.endswith(" runs\n") for line in stdout)
        nodes.processes[THIRD].send_signal(signal.SIGTERM)
        check(nodes, tmp_path, (SECOND, THIRD))
