"""Several jobs at one endpoint: the end of one does not affect the others."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.coordinators import coordinator
from support.launching import DEADLINE_S, Job, free_endpoint, shell_job

CODES = {"good": 0, "bad": 3}
# Each worker ends when it reads a line from its job's gate (a FIFO).
SCRIPT = "echo rank $RANK of $WORLD_SIZE; read line <$GATE; exit $CODE"


def job(run_id: str, endpoint: str, *words: str) -> Job:
    return shell_job(endpoint, "2", SCRIPT, *words, run_id=run_id)


def started(stack: ExitStack, jobs: dict[str, Job], directory: Path) -> dict[str, int]:
    """Starts two nodes of each job. Returns for each job the descriptor that ends its workers."""
    gates = {}
    for name, nodes in jobs.items():
        path = directory / name
        os.mkfifo(path)
        gates[name] = os.open(path, os.O_RDWR)  # so that no worker waits for the other end
        stack.callback(os.close, gates[name])
        stack.enter_context(nodes)
        for _ in range(2):
            nodes.start(CODE=str(CODES[name]), GATE=str(path))
    for nodes in jobs.values():
        lines = [node.stdout.readline() for node in nodes.nodes if node.stdout is not None]
        assert sorted(lines) == ["rank 0 of 2\n", "rank 1 of 2\n"]
    return gates


def end(nodes: Job, gate: int) -> list[int]:
    os.write(gate, b"\n\n")
    return [node.returncode for node in nodes.finish()]


@pytest.mark.smoke
def test_two_jobs_of_a_coordinator_outlive_its_restart_and_end_as_alone(tmp_path: Path) -> None:
    endpoint, state = free_endpoint(), tmp_path / "state"
    jobs = {name: job(name, endpoint, "--rdzv-conf=is_host=false") for name in CODES}
    with ExitStack() as stack:
        with coordinator(endpoint, state) as first:
            gates = started(stack, jobs, tmp_path)
            first.kill()
            first.wait(DEADLINE_S)
        with coordinator(endpoint, state):
            for name in ("bad", "good"):
                assert end(jobs[name], gates[name]) == [CODES[name]] * 2, name


def test_a_guest_job_fails_at_the_agent_that_hosts_another(tmp_path: Path) -> None:
    endpoint = free_endpoint()
    host = job("good", endpoint)
    guest = job("bad", endpoint, "--rdzv-conf=is_host=false")
    with ExitStack() as stack:
        gates = started(stack, {"good": host}, tmp_path)
        gates |= started(stack, {"bad": guest}, tmp_path)
        assert end(guest, gates["bad"]) == [3, 3]
        assert end(host, gates["good"]) == [0, 0]
