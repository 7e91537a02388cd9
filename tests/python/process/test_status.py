"""``elastic-launch status`` on real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
    free_endpoint,
    launch,
    launched,
    shell_job,
)
from support.succession import three_endpoints


def job_of_two(endpoint: str, *more: str, nnodes: str = "2") -> Job:
    """Nodes with two workers, which print their rank and pid and run until they are stopped."""
    words = ("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=5", *more)
    return shell_job(endpoint, nnodes, "echo $RANK $$; exec sleep 1000", *words)


@pytest.fixture
def endpoint() -> str:
    return free_endpoint()


def runs(snapshot: dict[str, Any], round_number: int, world_size: int) -> bool:
    """Whether all workers of that round run."""
    workers = [worker for node in snapshot["nodes"] for worker in node["workers"] or ()]
    return (
        snapshot["phase"] == "running"
        and (snapshot["round"], snapshot["world_size"]) == (round_number, world_size)
        and [worker["state"] for worker in workers] == ["running"] * world_size
        and all(node["workers_round"] == round_number for node in snapshot["nodes"])
    )


def next_that(watching: Any, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The next snapshot that matches."""
    while (seen := watching.next(DEADLINE_S)) is not None:
        if matches(seen):
            return dict(seen)
    raise AssertionError("no snapshot matches")


@pytest.mark.smoke
def test_status_shows_every_rank_and_observers_the_reason_of_a_restart(endpoint: str) -> None:
    with job_of_two(endpoint) as job:
        job.start_nodes(2, lines=2)
        with observe.connect(endpoint) as watching:
            shown = next_that(watching, lambda seen: runs(seen, 0, 4))
            workers = [worker for node in shown["nodes"] for worker in node["workers"]]
            for worker in workers:
                os.kill(worker["pid"], 0)
            text = launch("status", endpoint, check=True).stdout
            asked = json.loads(launch("status", endpoint, "--json", check=True).stdout)
            unknown = launch("status", endpoint, "--rdzv-id=other")
            os.kill(workers[2]["pid"], signal.SIGKILL)
            seen = next_that(watching, lambda seen: runs(seen, 1, 4))
    assert (asked["schema"], asked["job"], asked["phase"]) == (1, "job", "running")
    assert (asked["round"], asked["nodes_in_round"], asked["world_size"]) == (0, 2, 4)
    assert [worker["rank"] for worker in workers] == [0, 1, 2, 3]
    assert {node["host"] for node in asked["nodes"]} == {os.uname().nodename}
    assert [node["hosts_coordinator"] for node in asked["nodes"]].count(True) == 1
    assert "job job: running" in text
    assert f"2 running (0:{workers[0]['pid']} " in text
    assert unknown.returncode == 1
    assert "the coordinator has no job other; its jobs: job" in unknown.stderr
    ended, running = seen["rounds"]
    assert (ended["cause"], ended["rank"], ended["exit_code"]) == ("worker_failed", 2, 137)
    assert "SIGKILL" in ended["reason"]
    assert ended["node"] == shown["nodes"][1]["name"]
    first_step = ended["phases"].pop("first_step")
    assert first_step is None, "these workers report no steps"
    assert all(phase is not None and phase >= 0 for phase in ended["phases"].values())
    assert running["formed"] >= ended["ended"]
    assert seen["restarts"] == 1


def test_follow_ends_with_the_job(endpoint: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"echo ready; read line < {fifo}"
    with shell_job(endpoint, "1:2", script, "--rdzv-conf=last_call_timeout=0") as running:
        running.start_nodes(1, lines=1)
        with follower(endpoint) as following:
            following.until(lambda seen: seen["phase"] == "running")
            fifo.write_text("go\n")
            last = following.until(lambda seen: seen["result"] is not None)
            assert last["result"]["outcome"] == "succeeded"
            assert following.process.wait(DEADLINE_S) == 0
        running.succeed()


class Follower:
    """The lines of a running ``status --follow --json``."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def until(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Reads lines until one matches."""
        seen = []
        for line in self.process.stdout:
            snapshot: dict[str, Any] = json.loads(line)
            if matches(snapshot):
                return snapshot
            seen.append((snapshot["phase"], snapshot["round"], snapshot["world_size"]))
        raise AssertionError((seen, self.process.communicate(timeout=DEADLINE_S)))

    def stop(self) -> str:
        """Ends it by Ctrl-C; returns its stderr."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=DEADLINE_S)[1]


@contextmanager
def follower(endpoint: str) -> Iterator[Follower]:
    words = ("status", endpoint, "--rdzv-id=job", "--json", "--follow")
    with launched(*words) as process:
        yield Follower(process)
        process.kill()


def test_follow_shows_the_round_after_the_coordinator_was_restarted(
    endpoint: str, tmp_path: Path
) -> None:
    with ExitStack() as coordinators, job_of_two(endpoint, "--rdzv-conf=is_host=false") as nodes:
        with coordinator(endpoint, tmp_path / "state") as first:
            nodes.start_nodes(2, lines=2)
            following = coordinators.enter_context(follower(endpoint))
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
    conf = "--rdzv-conf=last_call_timeout=100,settle=0"
    with job_of_two(endpoint, conf, nnodes="2:3") as nodes:
        nodes.start_nodes(3, lines=2)
        with follower(endpoint) as following:
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


def test_a_list_of_endpoints_leads_to_the_elected_coordinator() -> None:
    with three_endpoints() as nodes, follower(nodes.endpoint) as following:
        following.until(lambda seen: runs(seen, 0, 3))
        nodes.kill("127.0.0.1")
        last = following.until(lambda seen: runs(seen, 1, 2))
        assert last["coordinator"]["term"] >= 2
        first_endpoint = nodes.endpoint.partition(",")[0]
        assert last["coordinator"]["address"] != first_endpoint
        # The new node could host a coordinator of its own at that endpoint, but finds the job.
        nodes.start(1)
        grown = following.until(lambda seen: runs(seen, 2, 3))
        assert grown["coordinator"]["address"] == last["coordinator"]["address"]
        nodes.stop("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["status"], "Connection refused"),
        (["stacks", "--timeout=1"], "elastic-launch stacks: "),
    ],
)
def test_a_dead_endpoint_is_one_sentence(words: list[str], text: str, endpoint: str) -> None:
    dead = launch(*words, endpoint)
    assert dead.returncode == 75
    assert text in dead.stderr and endpoint in dead.stderr
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
