"""The snapshots of a lost node continue on another one: each node has copies of its neighbour's."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from elastic import observe

from process.test_snapshots import script, starts
from support.coordinators import needs_openssl
from support.launching import Process, children, free_endpoint, job_at
from support.succession import REPLICATED, Nodes
from support.waiting import DEADLINE_S

HOST, GUEST = "--rdzv-conf=is_host=true", "--rdzv-conf=is_host=false"
OPTIONS = ("--nproc-per-node=2", "--max-restarts=2", "--shutdown-timeout=5")
# Ranks stop after step 8 of the first round, and end after step 12.
TO_TWELVE = """
train(8 if count == 0 else 12)
if count == 0:
    time.sleep(1000)
say(f"end {state == expected(12)}")
"""


def await_start(*nodes: Process) -> None:
    for node in nodes:
        while " from " not in (line := node.stdout.readline()):
            assert line, node.stderr.read()


def await_copies(endpoint: str, step: int, matches: Callable[[Any], bool] = bool) -> dict[str, Any]:
    """The first snapshot of the job in which every node has a copy of the step on another one."""
    with observe.connect(endpoint) as watching:
        while (seen := watching.next(DEADLINE_S)) is not None:
            if seen["saved"] and seen["saved"]["copied_step"] == step and matches(seen):
                return dict(seen)
    raise AssertionError("no step was copied")


def lose(node: Process) -> None:
    """Kills the agent, its guardian and the workers: nothing of the node's memory is left."""
    guardians = children(node.pid)
    processes = [worker for guardian in guardians for worker in children(guardian)]
    for pid in (node.pid, *guardians, *processes):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("has_token", [False, True])
def test_a_replacement_continues_at_the_step_of_the_node_that_was_lost(
    has_token: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = free_endpoint()
    options = list(OPTIONS)
    if has_token:
        needs_openssl()
        token = tmp_path / "token"
        token.write_text("a" * 40)
        token.chmod(0o600)
        options.append(f"--token-file={token}")
        monkeypatch.setenv("ELASTIC_TOKEN_FILE", str(token))  # of the observer
    with job_at(endpoint, "2", [script(tmp_path, TO_TWELVE)], *options) as nodes:
        first = nodes.start(HOST)
        second = nodes.start(GUEST)
        await_start(first, second)
        await_copies(endpoint, 8)
        lose(second)
        nodes.start(GUEST)
        done = nodes.finish_with(0, -signal.SIGKILL, 0)
    assert first.returncode == 0
    found = [one for node in (done[0], done[2]) for one in starts(node.stdout) if one[0] == 1]
    assert sorted(found) == [(1, rank, "8") for rank in range(4)], done[2].stderr
    assert (done[0].stdout + done[2].stdout).count("end True") == 4
    assert "continued at step 8 from memory" in done[0].stderr
    assert re.search(r"waiting for the state after step 8 of rank 2, 3 from ", done[2].stderr)


def snapshot_files(nodes: list[Process]) -> tuple[int, int]:
    """The bytes in memory of the snapshots that guardians hold, and of those of agents alone."""

    def files_of(pid: int) -> dict[int, int]:
        found = {}
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if "elastic-snapshot" in os.readlink(one):
                    stat = one.stat()
                    found[stat.st_ino] = stat.st_blocks * 512
        return found

    own: dict[int, int] = {}
    copies: dict[int, int] = {}
    for node in nodes:
        copies |= files_of(node.pid)
        for guardian in children(node.pid):
            own |= files_of(guardian)
    return sum(own.values()), sum(size for one, size in copies.items() if one not in own)


# The state itself takes no memory: it is only read.
SAVE_SLOWLY = """
import mmap
state = mmap.mmap(-1, STATE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
step = 4
while snapshot.save(step, [state]):
    step += 1
    worker.progress(step)
    while not os.path.exists(os.path.join(os.path.dirname(__file__), f"go{step}")):
        time.sleep(0.01)
    if step == 8:
        break
"""


def check_memory(
    state_bytes: int, ranks_of_node: int, tmp_path: Path, deadline_s: float = DEADLINE_S
) -> None:
    """Two nodes save and copy: what they hold is what `status` has said, and what the page says."""
    endpoint = free_endpoint()
    program = [script(tmp_path, SAVE_SLOWLY.replace("STATE_BYTES", str(state_bytes)))]
    options = (f"--nproc-per-node={ranks_of_node}", *OPTIONS[1:])
    with job_at(endpoint, "2", program, *options, deadline_s=deadline_s) as nodes:
        started = [nodes.start(HOST), nodes.start(GUEST)]
        await_start(*started)
        for step in (4, 5, 6, 7):
            seen = await_copies(endpoint, step)
            if step < 7:
                (tmp_path / f"go{step + 1}").touch()
        state = 2 * ranks_of_node * state_bytes

        def has_settled(seen: dict[str, Any]) -> bool:  # no copy is made, which keeps a third one
            memory = seen["saved"]["memory"]
            return max(memory["copy_bytes"], memory["snapshot_bytes"]) <= 2.05 * state

        memory = await_copies(endpoint, 7, has_settled)["saved"]["memory"]
        own, copies = snapshot_files(started)
        assert memory["snapshot_bytes"] == own
        assert 2 * state <= own <= 2.05 * state
        assert state <= copies <= 2.05 * state
        # One node has half of the ranks.
        assert 2 * state <= memory["needed_bytes"] <= 2.05 * state
        assert memory["limit_bytes"] > memory["needed_bytes"]
        assert seen["saved"]["memory"]["node"] in [node["name"] for node in seen["nodes"]]
        (tmp_path / "go8").touch()
        nodes.succeed()


def test_two_snapshots_of_a_rank_and_two_copies_are_what_status_has_said(tmp_path: Path) -> None:
    check_memory(4 << 20, 2, tmp_path)


def test_the_coordinators_host_may_be_the_one_that_is_lost(tmp_path: Path) -> None:
    endpoint = free_endpoint()
    program = [script(tmp_path, TO_TWELVE)]
    with job_at(endpoint, "3", program, "--nproc-per-node=1", *OPTIONS[1:]) as started:
        nodes = Nodes(started)
        nodes.start(1, 2, 3)
        await_start(*started.nodes)
        nodes.await_log("127.0.0.1", REPLICATED)
        await_copies(endpoint, 8)
        nodes.kill("127.0.0.1")
        nodes.start(1)
        done = started.finish_with(-signal.SIGKILL, 0, 0, 0)
    found = [one for node in done for one in starts(node.stdout) if one[0] == 1]
    assert sorted(found) == [(1, rank, "8") for rank in range(3)], done
    assert sum(node.stdout.count("end True") for node in done) == 3


# The processes that are kept go on from the state that they have, with another world size.
def test_after_a_change_in_place_the_snapshots_begin_anew(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
job = worker.membership()
if count == 0:
    train(4)
    say("saved")
    job.wait_until_over(100)
    found = job.next_round()
    rank, world, count = found.rank, found.world_size, found.round
    assert snapshot.restore() is None
    train(6)
    os.kill(os.getpid(), signal.SIGKILL)
train(8)
say(f"end {state == expected(8)}")
""",
    )
    options = ("--nproc-per-node=1", "--on-membership-change=inplace", *OPTIONS[1:])
    with job_at(free_endpoint(), "1:2", [program], *options) as nodes:
        first, second = nodes.start(HOST), nodes.start(GUEST)
        for node in (first, second):
            while "saved" not in (line := node.stdout.readline()):
                assert line, node.stderr.read()
        lose(second)
        done = nodes.finish_with(0, -signal.SIGKILL)
    assert starts(done[0].stdout) == [(2, 0, "6")], done[0].stderr
    assert "end True" in done[0].stdout


@pytest.mark.parametrize(("buddies", "step"), [("1", "None"), ("2", "8")])
def test_a_node_and_its_buddy_are_lost_and_a_second_buddy_serves_both(
    buddies: str, step: str, tmp_path: Path
) -> None:
    endpoint = free_endpoint()
    program = [script(tmp_path, TO_TWELVE)]
    options = ("--nproc-per-node=1", f"--snapshot-buddy={buddies}", *OPTIONS[1:])
    with job_at(endpoint, "3", program, *options) as nodes:
        first = nodes.start(HOST)
        others = [nodes.start(GUEST) for _ in range(2)]
        await_start(first, *others)
        await_copies(endpoint, 8)
        for node in others:
            lose(node)
        for _ in others:
            nodes.start(GUEST)
        done = nodes.finish_with(0, *[-signal.SIGKILL] * 2, 0, 0)
    number = max(one for node in done for one, _, _ in starts(node.stdout))
    found = [one for node in done for one in starts(node.stdout) if one[0] == number]
    assert sorted(found) == [(number, rank, step) for rank in range(3)]
    is_used = "the snapshots in memory are not used" not in done[0].stderr
    assert is_used == (step != "None")
