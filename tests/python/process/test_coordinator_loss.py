"""Agents whose coordinator is away: how long they wait for it, and what they report."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from support.coordinators import coordinator
from support.launching import Job, Process, await_line, free_endpoint, shell_job

STORE_GRACE_S = 15  # the test acts within this time


def job(run_id: str, endpoint: str, gate: Path) -> Job:
    """A job with one node, whose worker exits with 3 when the gate is there."""
    conf = f"--rdzv-conf=is_host=false,store_grace={STORE_GRACE_S}"
    script = f"echo ready; until test -e {gate}; do sleep 0.02; done; exit 3"
    return shell_job(endpoint, "1", script, conf, run_id=run_id)


def started(nodes: Job) -> Process:
    """Starts a node and waits until its worker runs."""
    node = nodes.start()
    assert node.stdout.readline() == "ready\n"
    return node


def test_an_agent_gives_up_after_the_grace_period_unless_it_was_stopped_in_it(
    tmp_path: Path,
) -> None:
    endpoint, state = free_endpoint(), tmp_path / "state"
    gates = [tmp_path / "1", tmp_path / "2"]
    away = f"the coordinator at {endpoint} cannot be reached"
    one, other = (job(gate.name, endpoint, gate) for gate in gates)
    with one, other:
        with coordinator(endpoint, state):
            runs, stopped = started(one), started(other)
        await_line(stopped, away)
        stopped.send_signal(signal.SIGSTOP)
        await_line(runs, away)
        gates[0].touch()
        [ended] = one.finish()
        # Only now, after its grace period, the other agent continues.
        with coordinator(endpoint, state):
            stopped.send_signal(signal.SIGCONT)
            gates[1].touch()
            [resumed] = other.finish()
    assert resumed.returncode == 3, resumed.stderr
    assert "was not reached" not in resumed.stderr
    # The lost coordinator is reported before the worker that failed, too.
    assert ended.returncode == 77, ended.stderr
    # An outage is logged again from time to time.
    first, *rest = [line for line in ended.stderr.splitlines() if "cannot be reached" not in line]
    reason = f"the coordinator at {endpoint} was not reached for {STORE_GRACE_S} s: "
    assert first.startswith(f"elastic-launch: sh failed: {reason}"), ended.stderr
    worker = r"also failed here: rank 0 \(local rank 0, pid \d+\) exited with code 3"
    assert any(re.fullmatch(worker, line) for line in rest), ended.stderr
