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


def test_a_node_and_its_buddy_are_lost_and_no_rank_continues(tmp_path: Path) -> None:
    endpoint = free_endpoint()
    program = [script(tmp_path, TO_TWELVE)]
    with job_at(endpoint, "3", program, "--nproc-per-node=1", *OPTIONS[1:]) as nodes:
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
    assert sorted(found) == [(number, rank, "None") for rank in range(3)]
    assert "the snapshots in memory are not used" in done[0].stderr
