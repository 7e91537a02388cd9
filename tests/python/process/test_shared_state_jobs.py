"""Several launchers form one job over a shared state, without a coordinator."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic import StoreServer

from support.launching import DEADLINE_S, Job

RANKS = "echo rank $RANK of $WORLD_SIZE, store $MASTER_PORT"
# No node gets no CPU for so long, and none waits for another one that is to join.
CONF = "--rdzv-conf=node_timeout=6,last_call_timeout=100"


@pytest.fixture(params=["file", "tcpstore", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    kind: str = request.param
    options = [f"--rdzv-backend={kind}", f"--rdzv-id={uuid.uuid4()}"]
    if kind == "file":
        yield [*options, f"--rdzv-endpoint={tmp_path / 'state'}"]
    elif kind == "tcpstore":
        with StoreServer() as server:  # test_rendezvous_handlers.py has torch's server, too
            yield [*options, f"--rdzv-endpoint=127.0.0.1:{server.port}"]
    else:
        yield [*options, f"--rdzv-endpoint={request.getfixturevalue('etcd')}"]


def job(place: list[str], nnodes: str, *words: str, script: str = RANKS) -> Job:
    options = ["--nnodes", nnodes, "--no-python", CONF, *place, *words]
    return Job(options, ["sh", "-c", script])


@pytest.mark.smoke
def test_two_agents_form_a_job_and_remove_their_state(place: list[str]) -> None:
    for _ in range(2):  # the second job of this name is another generation
        with job(place, "2", "--nproc-per-node=2") as nodes:
            nodes.start()
            nodes.start()
            done = nodes.succeed()
        lines = sorted(line for node in done for line in node.stdout.splitlines())
        assert [line.split(",")[0] for line in lines] == [f"rank {r} of 4" for r in range(4)]
        assert len({line.split(",")[1] for line in lines}) == 1


def test_a_failed_worker_costs_all_agents_one_restart(place: list[str]) -> None:
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 1 || test $RANK = 0 || exit 9'
    with job(place, "2", "--max-restarts=1", script=script) as nodes:
        nodes.start()
        nodes.start()
        nodes.succeed()


def test_the_budget_ends_all_agents_with_the_same_code_and_cause(place: list[str]) -> None:
    with job(place, "2", script="test $RANK = 0 && sleep 1000; exit 9") as nodes:
        nodes.start()
        nodes.start()
        done = nodes.finish()
    assert [node.returncode for node in done] == [9, 9], [node.stderr for node in done]
    assert all(re.search(r"rank 1 .*exited with code 9", node.stderr) for node in done)


def test_killed_agent_is_lost_after_node_timeout(tmp_path: Path) -> None:
    place = ["--rdzv-backend=file", "--rdzv-id=job", f"--rdzv-endpoint={tmp_path / 'state'}"]
    script = 'echo at work in a world of $WORLD_SIZE; test "$WORLD_SIZE" = 1 || sleep 1000'
    with job(place, "1:2", script=script) as nodes:
        victim, survivor = nodes.start(), nodes.start()
        for node in (victim, survivor):
            assert node.stdout.readline() == "at work in a world of 2\n"
        victim.kill()
        stdout, stderr = survivor.communicate(timeout=DEADLINE_S)
        assert survivor.returncode == 0, stderr
        assert stdout == "at work in a world of 1\n"
