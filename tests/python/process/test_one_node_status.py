"""``status``, ``stacks``, ``drain`` and the list of jobs, of jobs without a coordinator's port."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest
from elastic import observe

from support.launching import DEADLINE_S, free_endpoint, launch, launched, shell_job
from support.stopping import EXIT_STOPPED, MANY, STUB, await_steps
from support.waiting import eventually


def new_id() -> str:
    """Other tests may run jobs on this host, too."""
    return f"job-{uuid.uuid4().hex[:12]}"


def listed(run_id: str) -> list[dict[str, Any]]:
    done = launch("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [one for one in map(json.loads, done.stdout.splitlines()) if one["job"] == run_id]


@pytest.mark.smoke
def test_a_job_of_one_node_is_listed_shown_and_stopped_by_its_id(tmp_path: Path) -> None:
    run_id = new_id()
    options = (f"--rdzv-id={run_id}", "--nproc-per-node=2", "--max-restarts=1")
    with launched(*options, STUB, str(tmp_path), MANY, "1") as job:
        await_steps(job, 2)
        (row,) = listed(run_id)
        assert (row["phase"], row["nodes_in_round"], row["world_size"]) == ("running", 1, 2)
        assert row["pids"] == [job.pid]
        path = row["endpoint"].removeprefix("unix:")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700

        workers = json.loads(launch("status", run_id, "--json").stdout)["nodes"][0]["workers"]
        assert [worker["state"] for worker in workers] == ["running", "running"]
        stacks = launch("stacks", str(job.pid))
        assert (stacks.returncode, stacks.stderr) == (0, "")
        assert "rank 0" in stacks.stdout or "ranks 0" in stacks.stdout

        os.kill(workers[1]["pid"], signal.SIGKILL)
        await_steps(job, 2)
        text = launch("status", f"--rdzv-id={run_id}").stdout
        assert f"job {run_id}: running" in text
        assert "1 of 1 restarts used" in text and "in the job's only agent at unix:" in text
        assert "worker failed" in text and "SIGKILL" in text

        drained = launch("drain", run_id)
        assert (drained.returncode, drained.stderr) == (0, "")
        assert "every rank stops at step" in drained.stdout
        job.end(EXIT_STOPPED)
    assert not os.path.exists(path)
    assert listed(run_id) == []
    gone = launch("status", f"--rdzv-id={run_id}")
    assert gone.returncode == 1
    assert f"no job {run_id} of this user runs on this host" in gone.stderr


MAGIC = b"\xe5elastic"
# A hello without fields, one that is cut, a message of a later version, and no message.
OTHERS = [b"\2\0\0\0\1\1", b"\4\0\0\0\1\1\xff\xff", b"\2\0\0\0\77\0", b"\xff" * 64]


@pytest.mark.parametrize("sent", OTHERS)
def test_an_observer_of_another_version_does_not_end_the_job(sent: bytes, tmp_path: Path) -> None:
    run_id = new_id()
    with launched(f"--rdzv-id={run_id}", STUB, str(tmp_path), MANY, "1") as job:
        await_steps(job, 1)
        (row,) = listed(run_id)
        with socket.socket(socket.AF_UNIX) as observer:
            observer.connect(row["endpoint"].removeprefix("unix:"))
            observer.sendall(MAGIC + sent)
            observer.shutdown(socket.SHUT_WR)
            while observer.recv(4096):
                pass
        assert f"job {run_id}: running" in launch("status", run_id, check=True).stdout
        assert job.poll() is None
        job.terminate()
        job.communicate(timeout=DEADLINE_S)


def test_a_job_of_several_nodes_is_found_by_its_id() -> None:
    run_id, endpoint = new_id(), free_endpoint()
    with shell_job(endpoint, "2", "echo ready; exec sleep 1000", run_id=run_id) as job:
        job.start_nodes(2, lines=1)
        (row,) = listed(run_id)
        assert row["endpoint"] == endpoint
        assert row["pids"] == sorted(node.pid for node in job.nodes)
        eventually(lambda: f"job {run_id}: running" in launch("status", run_id).stdout)
        unknown = launch("status", "no-such-host.invalid", "--timeout=1")
        assert unknown.returncode == 1
        assert "and no-such-host.invalid is not a host name; its jobs are" in unknown.stderr
        assert f"{run_id} (pid" in unknown.stderr


STEPS = """
import os, sys
from elastic import worker
worker.progress(7)
if os.environ["ELASTIC_ROUND"] != "2":
    sys.exit(3)
print("reported", flush=True)
sys.stdin.readline()
"""


def test_the_first_step_of_each_round_and_the_progress_are_seen(tmp_path: Path) -> None:
    """Also of a worker that ends before a periodic sample of its steps."""
    run_id, script = new_id(), tmp_path / "steps.py"
    script.write_text(STEPS)
    options = (f"--rdzv-id={run_id}", "--max-restarts=2", "--restart-backoff=0")
    with launched(*options, str(script)) as job:
        assert job.stdout.readline() == "reported\n"
        (row,) = listed(run_id)
        with observe.connect(row["endpoint"]) as seen:
            snapshot = seen.next(DEADLINE_S)
            while snapshot is not None and snapshot["progress"] is None:
                snapshot = seen.next(DEADLINE_S)
        assert snapshot is not None
        expected = {"step": 7, "slowest_step": 7, "ranks": 1, "step_seconds": None}
        assert snapshot["progress"] == expected
        assert [one["first_step"] is not None for one in snapshot["rounds"]] == [True] * 3
        job.communicate("go\n", timeout=DEADLINE_S)
