"""Snapshots in jobs that stop at an agreed step, exclude a host, have a store, or are half done."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from elastic import observe

from process.test_exclude import EXIT_EXCLUDED, host
from process.test_snapshot_copies import (
    GUEST,
    HOST,
    OPTIONS,
    TO_TWELVE,
    await_copies,
    await_start,
    lose,
)
from process.test_snapshots import script, starts
from support.launching import Job, free_endpoint, job_at, launch
from support.stopping import EXIT_STOPPED
from support.waiting import eventually

ONE_RANK = ("--nproc-per-node=1", *OPTIONS[1:])


def test_the_ranks_that_stop_at_an_agreed_step_have_saved_it(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
while not worker.should_stop(step):
    train(step + 1)
    time.sleep(0.001)
say(f"stopped {step} {state == expected(step)}")
""",
    )
    endpoint = free_endpoint()
    with job_at(endpoint, "2", [program], *ONE_RANK, "--drain=60") as nodes:
        first, second = nodes.start(HOST), nodes.start(GUEST)
        await_start(first, second)
        with observe.connect(endpoint) as watching:
            for seen in iter(watching.next, None):
                if seen["saved"] and (seen["saved"]["copied_step"] or 0) > 0:
                    break
        second.terminate()
        done = nodes.finish_with(EXIT_STOPPED, EXIT_STOPPED)
    ends = {line.split(maxsplit=2)[2] for node in done for line in node.stdout.splitlines()}
    (end,) = ends
    assert end.startswith("stopped") and end.endswith("True")


def test_a_spare_continues_at_the_step_of_a_host_that_is_excluded(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot give a process a host name of its own")
    endpoint = free_endpoint()
    with job_at(endpoint, "2", [script(tmp_path, TO_TWELVE)], *ONE_RANK) as nodes:
        first, bad = nodes.start(HOST, on=host("good1")), nodes.start(GUEST, on=host("bad"))
        await_start(first, bad)
        nodes.start(GUEST, on=host("good2"))
        await_copies(endpoint, 8, lambda seen: seen["spare_nodes"] + seen["waiting_nodes"] == 1)
        assert launch("exclude", endpoint, "--rdzv-id=job", "bad").returncode == 0
        done = nodes.finish_with(0, EXIT_EXCLUDED, 0)
    found = [one for node in done for one in starts(node.stdout) if one[0] == 1]
    assert sorted(found) == [(1, 0, "8"), (1, 1, "8")], done[2].stderr


@pytest.mark.parametrize("way", ["lost", "handed-over"])
def test_a_job_with_a_store_continues_without_the_node_of_its_coordinator(
    way: str, tmp_path: Path
) -> None:
    place = str(tmp_path / "state")
    options = (
        *("--rdzv-backend=file", f"--rdzv-endpoint={place}", "--rdzv-id=job", "--nnodes=2"),
        "--rdzv-conf=node_timeout=6,last_call_timeout=100",
    )

    def coordinator() -> str:
        try:
            return observe.find(f"file://{place}", "job")
        except observe.RendezvousError:
            return ""

    with Job([*options, *ONE_RANK], [script(tmp_path, TO_TWELVE)]) as nodes:
        first = nodes.start()
        eventually(lambda: coordinator() != "")
        second = nodes.start()
        await_start(first, second)
        await_copies(coordinator(), 8)
        if way == "lost":
            lose(first)
        else:
            first.terminate()
        nodes.start()
        done = nodes.finish()
    assert [node.returncode for node in done[1:]] == [0, 0], done
    found = [one for node in done[1:] for one in starts(node.stdout) if one[0] == 1]
    assert sorted(found) == [(1, 0, "8"), (1, 1, "8")], done[2].stderr


def test_a_failure_after_the_workers_of_a_node_have_succeeded(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
train(8 if count == 0 else 12)
if count == 0 and rank == 1:
    say(f"pid {os.getpid()}")
    time.sleep(1000)
say(f"end {state == expected(step)}")
""",
    )
    endpoint = free_endpoint()
    with job_at(endpoint, "2", [program], *ONE_RANK) as nodes:
        first, second = nodes.start(HOST), nodes.start(GUEST)
        await_start(second)
        pid = int(second.stdout.readline().split()[-1])
        with observe.connect(endpoint) as watching:
            for seen in iter(watching.next, None):
                if any(node["state"] == "done" for node in seen["nodes"]):
                    break
        os.kill(pid, signal.SIGKILL)
        done = nodes.succeed()
    found = [one for node in done for one in starts(node.stdout) if one[0] == 1]
    assert sorted(found) == [(1, 0, "8"), (1, 1, "8")]
    assert first.returncode == 0
