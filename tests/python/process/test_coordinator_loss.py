"""Agents whose coordinator is away: how long they wait for it, and what they report."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.coordinators import coordinator
from support.launching import Job, await_line, free_endpoint, shell_job

STORE_GRACE_S = 15  # each test acts within this time


def job(run_id: str, endpoint: str, gate: Path) -> Job:
    """A job with one node, whose worker exits with 3 when it reads a line from the gate."""
    conf = f"--rdzv-conf=is_host=false,store_grace={STORE_GRACE_S}"
    script = f"echo ready; read line <{gate}; exit 3"
    return shell_job(endpoint, "1", script, conf, run_id=run_id)


@contextmanager
def fifo(path: Path) -> Iterator[int]:
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)  # so that neither end waits for the other
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def started(nodes: Job) -> subprocess.Popen[str]:
    """Starts a node and waits until its worker runs."""
    node = nodes.start()
    assert node.stdout.readline() == "ready\n"
    return node


def test_a_lost_coordinator_is_reported_before_a_worker_that_failed_too(tmp_path: Path) -> None:
    endpoint, gate = free_endpoint(), tmp_path / "gate"
    with fifo(gate) as writer, job("job", endpoint, gate) as nodes:
        with coordinator(endpoint, tmp_path / "state"):
            node = started(nodes)
        await_line(node, f"the coordinator at {endpoint} cannot be reached")
        os.write(writer, b"\n")
        [done] = nodes.finish()
    assert done.returncode == 77, done.stderr
    # An outage is logged again from time to time.
    lines = [line for line in done.stderr.splitlines() if "cannot be reached" not in line]
    first, *rest = lines
    reason = f"the coordinator at {endpoint} was not reached for {STORE_GRACE_S} s: "
    assert first.startswith(f"elastic-launch: sh failed: {reason}"), done.stderr
    worker = r"also failed here: rank 0 \(local rank 0, pid \d+\) exited with code 3"
    assert any(re.fullmatch(worker, line) for line in rest), done.stderr


def test_an_agent_that_was_stopped_for_the_grace_period_tries_again(tmp_path: Path) -> None:
    endpoint, gate, state = free_endpoint(), tmp_path / "gate", tmp_path / "state"
    # The agent that runs gives up when the grace period has passed; only then the other one, which
    # was stopped in the same period, continues.
    with fifo(gate) as writer, job("1", endpoint, gate) as one, job("2", endpoint, gate) as other:
        with coordinator(endpoint, state):
            started(one)
            stopped = started(other)
        await_line(stopped, f"the coordinator at {endpoint} cannot be reached")
        stopped.send_signal(signal.SIGSTOP)
        [running] = one.finish()
        assert running.returncode == 77, running.stderr
        with coordinator(endpoint, state):
            stopped.send_signal(signal.SIGCONT)
            os.write(writer, b"\n")
            [resumed] = other.finish()
    assert resumed.returncode == 3, resumed.stderr
    assert "was not reached" not in resumed.stderr
