"""``elastic-launch status`` on real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from elastic import observe
from elastic.errors import RendezvousUnavailable

from support.coordinators import coordinator
from support.launching import (
    DEADLINE_S,
    Job,
    Process,
    assert_all_ended,
    clean_environment,
    free_endpoint,
    launch,
    launcher_command,
)
from support.succession import three_endpoints
from support.waiting import eventually

# Prints its rank and pid, and ends when its stdin is closed or the job is stopped.
WORKER = ["--no-python", "/bin/sh", "-c", "echo $RANK $$; exec sleep 1000"]


def options(endpoint: str, *more: str) -> list[str]:
    return [
        *("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job"),
        *("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=5"),
        *more,
    ]


@pytest.fixture
def endpoint() -> str:
    return free_endpoint()


@pytest.fixture
def job(endpoint: str) -> Iterator[Job]:
    """Two nodes with two running workers each."""
    with Job(options(endpoint), WORKER) as running:
        running.start_nodes(2, lines=2)
        yield running


def snapshot(endpoint: str) -> dict[str, Any]:
    done = launch("status", endpoint, "--json", "--timeout=60")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def running_snapshot(endpoint: str) -> dict[str, Any]:
    """When the coordinator knows that all workers run, which have printed their lines before."""
    found: list[dict[str, Any]] = []

    def all_run() -> bool:
        found.append(snapshot(endpoint))
        return runs(found[-1], 0, 4)

    eventually(all_run)
    return found[-1]


@pytest.mark.smoke
def test_status_shows_every_rank_with_its_pid(job: Job, endpoint: str) -> None:
    shown = running_snapshot(endpoint)
    assert (shown["schema"], shown["job"], shown["phase"]) == (1, "job", "running")
    assert (shown["round"], shown["nodes_in_round"], shown["world_size"]) == (0, 2, 4)
    workers = [worker for node in shown["nodes"] for worker in node["workers"]]
    assert [worker["rank"] for worker in workers] == [0, 1, 2, 3]
    assert {worker["state"] for worker in workers} == {"running"}
    for worker in workers:
        os.kill(worker["pid"], 0)
    hosts = {node["host"] for node in shown["nodes"]}
    assert hosts == {os.uname().nodename}
    assert [node["hosts_coordinator"] for node in shown["nodes"]].count(True) == 1
    text = launch("status", endpoint)
    assert text.returncode == 0
    assert "job job: running" in text.stdout
    assert f"2 running (0:{workers[0]['pid']} " in text.stdout


def test_a_restart_is_pushed_with_its_reason(job: Job, endpoint: str) -> None:
    with observe.connect(endpoint) as watching:
        first = watching.first(DEADLINE_S)
        while first is not None and not runs(first, 0, 4):
            first = watching.next(DEADLINE_S)
        assert first is not None
        victim = first["nodes"][1]["workers"][0]
        os.kill(victim["pid"], signal.SIGKILL)
        while (seen := watching.next(DEADLINE_S)) is not None:
            if seen["round"] == 1 and all(
                worker["state"] == "running" and node["workers_round"] == 1
                for node in seen["nodes"]
                for worker in node["workers"]
            ):
                break
        assert seen is not None
        ended, running = seen["rounds"]
        assert (ended["cause"], ended["rank"], ended["exit_code"]) == ("worker_failed", 2, 137)
        assert "SIGKILL" in ended["reason"]
        assert ended["node"] == first["nodes"][1]["name"]
        first_step = ended["phases"].pop("first_step")
        assert first_step is None, "these workers report no steps"
        assert all(phase is not None and phase >= 0 for phase in ended["phases"].values())
        assert running["formed"] >= ended["ended"]
        assert seen["restarts"] == 1


def test_follow_ends_with_the_job(endpoint: str, tmp_path: Path) -> None:
    program = ["--no-python", "/bin/sh", "-c", "echo ready; read line < $FIFO"]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = options(endpoint, "--nproc-per-node=1", "--nnodes=1:2")
    conf = "--rdzv-conf=last_call_timeout=0"
    with Job([*words, conf], program) as running:
        node = running.start(FIFO=str(fifo))
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
        with Follower(endpoint) as following:
            following.until(lambda seen: seen["phase"] == "running")
            fifo.write_text("go\n")
            last = following.until(lambda seen: seen["result"] is not None)
            assert last["result"]["outcome"] == "succeeded"
            assert following.end() == 0
        assert [done.returncode for done in running.finish()] == [0]


class Follower:
    """``status --follow --json``, whose lines are read until one matches."""

    def __init__(self, endpoint: str) -> None:
        self._environ = clean_environment()
        self._process = Process(
            launcher_command("status", endpoint, "--rdzv-id=job", "--json", "--follow"),
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._deadline = threading.Timer(DEADLINE_S, self._process.kill)

    def until(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self._process.stdout is not None
        seen = []
        for line in self._process.stdout:
            snapshot: dict[str, Any] = json.loads(line)
            if matches(snapshot):
                return snapshot
            seen.append((snapshot["phase"], snapshot["round"], snapshot["world_size"]))
        raise AssertionError((seen, self._process.communicate(timeout=DEADLINE_S)))

    def end(self) -> int:
        """Waits until it has ended by itself."""
        self._process.communicate(timeout=DEADLINE_S)
        return self._process.returncode

    def stop(self) -> str:
        """Ends it by Ctrl-C; returns its stderr."""
        self._process.send_signal(signal.SIGINT)
        return self._process.communicate(timeout=DEADLINE_S)[1]

    def __enter__(self) -> Follower:
        self._deadline.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline.cancel()
        self._process.kill()
        self._process.communicate(timeout=DEADLINE_S)
        assert_all_ended(self._environ)


def runs(snapshot: dict[str, Any], round_number: int, world_size: int) -> bool:
    """Whether all workers of that round run."""
    workers = [worker for node in snapshot["nodes"] for worker in node["workers"] or ()]
    return (
        snapshot["phase"] == "running"
        and (snapshot["round"], snapshot["world_size"]) == (round_number, world_size)
        and [worker["state"] for worker in workers] == ["running"] * world_size
        and all(node["workers_round"] == round_number for node in snapshot["nodes"])
    )


def test_follow_shows_the_round_after_the_coordinator_was_restarted(
    endpoint: str, tmp_path: Path
) -> None:
    words = options(endpoint, "--rdzv-conf=is_host=false")
    with ExitStack() as coordinators, Job(words, WORKER) as nodes:
        with coordinator(endpoint, tmp_path / "state") as first:
            nodes.start_nodes(2, lines=2)
            following = coordinators.enter_context(Follower(endpoint))
            before = following.until(lambda seen: runs(seen, 0, 4))
            first.kill()
            first.wait(DEADLINE_S)
        coordinators.enter_context(coordinator(endpoint, tmp_path / "state"))
        after = following.until(lambda seen: runs(seen, 0, 4))
        assert after["coordinator"]["incarnation"] != before["coordinator"]["incarnation"]
        os.kill(after["nodes"][1]["workers"][0]["pid"], signal.SIGKILL)
        last = following.until(lambda seen: runs(seen, 1, 4))
        assert (last["restarts"], last["rounds"][0]["cause"]) == (1, "worker_failed")
        stderr = following.stop()
    # The first line is of the closed connection, with the text that the kernel reported.
    found = r"^elastic-launch status: .*coordinator.*; trying again for 1 min$"
    assert re.search(found, stderr, re.M)


def test_follow_shows_the_round_after_a_node_was_lost(endpoint: str) -> None:
    words = options(endpoint, "--nnodes=2:3", "--rdzv-conf=last_call_timeout=100,settle=0")
    with Job(words, WORKER) as nodes:
        nodes.start_nodes(3, lines=2)
        with Follower(endpoint) as following:
            before = following.until(lambda seen: runs(seen, 0, 6))
            host = before["coordinator"]["node"]
            victim = next(node for node in before["nodes"] if node["name"] != host)
            agent = int(victim["name"].rpartition("_")[2])
            os.kill(agent, signal.SIGKILL)
            last = following.until(lambda seen: runs(seen, 1, 4))
            assert (last["restarts"], last["membership_changes"]) == (0, 1)
            assert last["rounds"][0]["cause"] == "node_lost"
            assert victim["name"] not in {node["name"] for node in last["nodes"]}
            assert following.stop() == ""


def test_follow_shows_the_round_of_an_elected_coordinator() -> None:
    port = free_endpoint().rpartition(":")[2]
    endpoints = ",".join(f"127.0.0.{number}:{port}" for number in (1, 2, 3))
    with three_endpoints(endpoints) as nodes, Follower(endpoints) as following:
        following.until(lambda seen: runs(seen, 0, 3))
        nodes.kill("127.0.0.1")
        last = following.until(lambda seen: runs(seen, 1, 2))
        assert last["coordinator"]["term"] >= 2
        assert last["coordinator"]["address"] != f"127.0.0.1:{port}"
        nodes.stop("127.0.0.2", "127.0.0.3")


def test_an_unknown_job_and_a_dead_endpoint_are_one_sentence(job: Job, endpoint: str) -> None:
    unknown = launch("status", endpoint, "--rdzv-id=other")
    assert unknown.returncode == 1
    assert "the coordinator has no job other; its jobs: job" in unknown.stderr
    dead = launch("status", free_endpoint())
    assert dead.returncode == 75
    assert "Connection refused" in dead.stderr
    assert dead.stderr.count("\n") == 1


def test_a_list_of_dead_endpoints_stays_unavailable() -> None:
    endpoints = [free_endpoint(), free_endpoint()]
    with observe.connect(",".join(endpoints), "job") as seen:
        with pytest.raises(RendezvousUnavailable) as both:
            seen.next(DEADLINE_S)
        assert all(endpoint in str(both.value) for endpoint in endpoints)
        with pytest.raises(RendezvousUnavailable):
            seen.next(DEADLINE_S)


def test_status_cannot_be_mistaken_for_a_program_with_options(endpoint: str) -> None:
    done = launch("--no-python", "status", endpoint)
    assert done.returncode == 2
    assert "status is not in PATH" in done.stderr
