"""Jobs that lost the majority of their voters for good, and continue by an operator's command."""

from __future__ import annotations

import os
import pty
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from elastic import _C

from support.coordinators import listening, needs_openssl
from support.launching import (
    DEADLINE_S,
    clean_environment,
    free_endpoint,
    launch,
    launched,
)
from support.succession import Nodes, job, replicated_job, snapshot, witness_endpoint

HINT = r"elastic-launch override (\S+) --rdzv-id job"


@contextmanager
def running_job(count: int, conf: str, **environ: str) -> Iterator[Nodes]:
    """A job whose round runs on `count` hosts, of which as many keep its record."""
    endpoint = free_endpoint()
    with job(endpoint, nodes=f"1:{count}") as started:
        nodes = Nodes(started, conf=f"voters={count},{conf}", **environ)
        nodes.options = ["--max-restarts=3", "--shutdown-timeout=5"]
        nodes.endpoint = endpoint
        nodes.start(*range(1, count + 1))
        nodes.places(*nodes.processes)
        lost = "any one host" if count == 3 else "any two hosts"
        nodes.await_log("127.0.0.1", f"survives the loss of {lost}")
        yield nodes


def override(address: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    words = ["override", address, "--rdzv-id=job", "--yes", *options]
    return launch(*words, environ=clean_environment(**environ))


# The two other pairs run in the nightly.
@pytest.mark.parametrize(
    ("survivor", "store_grace"),
    [
        pytest.param("127.0.0.1", 100, id="coordinator-while-workers-run"),
        pytest.param("127.0.0.3", 6, id="voter-after-they-stopped"),
        pytest.param("127.0.0.1", 6, marks=pytest.mark.nightly),
        pytest.param("127.0.0.3", 100, marks=pytest.mark.nightly),
    ],
)
def test_the_survivor_of_three_goes_on(survivor: str, store_grace: int) -> None:
    with running_job(3, f"store_grace={store_grace},override_timeout=100") as nodes:
        # A failure that was charged, so that there is a counter to be kept.
        os.kill(nodes.latest["127.0.0.2"].pid, signal.SIGKILL)
        assert {nodes.place(one)[:3] for one in nodes.processes} == {(1, 3, 1)}
        nodes.kill(*(one for one in nodes.processes if one != survivor))
        voter = nodes.await_log(survivor, HINT)[1]
        if store_grace == 6:
            nodes.await_log(survivor, "waits for a coordinator, or an override, for 1 min 40 s")
        done = override(voter)
        assert (done.returncode, done.stderr) == (0, "")
        found = re.search(r"this node runs the job's coordinator now: (\S+)", done.stdout)
        assert found, done.stdout
        assert nodes.place(survivor)[:3] == (2, 1, 1)
        assert snapshot(found[1])["nodes_in_round"] == 1
        again = override(voter)
        assert (again.returncode, again.stderr) == (0, "")
        assert "this node runs the job's coordinator already" in again.stdout
        nodes.stop(survivor)


def test_two_survivors_of_five_go_on_together() -> None:
    with running_job(5, "store_grace=20,override_timeout=1000") as nodes:
        nodes.kill("127.0.0.1", "127.0.0.2", "127.0.0.4")
        # A collective breaks: it is explained by the lost hosts, and not charged.
        os.kill(nodes.latest["127.0.0.3"].pid, signal.SIGKILL)
        voter = nodes.await_log("127.0.0.5", HINT)[1]
        done = override(voter)
        assert (done.returncode, done.stderr) == (0, ""), nodes.logs
        places = [nodes.place(one)[:3] for one in ("127.0.0.3", "127.0.0.5")]
        assert places == [(1, 2, 0)] * 2
        other = nodes.await_log("127.0.0.3", HINT)[1]
        refused = override(other)
        assert refused.returncode == 1
        assert "the coordinator of the job is not lost: this node reaches it at" in refused.stderr
        nodes.stop("127.0.0.3", "127.0.0.5")


def test_with_a_token_the_command_needs_it() -> None:
    needs_openssl()
    secret = secrets.token_hex(32)
    with running_job(3, "store_grace=100", ELASTIC_TOKEN=secret) as nodes:
        nodes.kill("127.0.0.1", "127.0.0.2")
        voter = nodes.await_log("127.0.0.3", HINT)[1]
        without = override(voter)
        assert without.returncode == 1
        assert "it has none: set the same token on all nodes" in without.stderr
        assert override(voter, ELASTIC_TOKEN=secrets.token_hex(32)).returncode != 0
        done = override(voter, ELASTIC_TOKEN=secret)
        assert (done.returncode, done.stderr) == (0, "")
        assert nodes.place("127.0.0.3")[:3] == (1, 1, 0)
        nodes.stop("127.0.0.3")


def test_a_node_that_waits_for_an_override_ends_by_sigterm() -> None:
    with running_job(3, "store_grace=5,override_timeout=1000") as nodes:
        nodes.kill("127.0.0.2", "127.0.0.3")
        nodes.await_log("127.0.0.1", "waits for a coordinator, or an override, for 16 min 40 s")
        nodes.stop("127.0.0.1")
        assert nodes.processes["127.0.0.1"].wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_a_job_that_has_its_coordinator_refuses() -> None:
    with replicated_job() as nodes:
        voters = snapshot(nodes.endpoint)["coordinator"]["voters"]
        for voter in voters:
            refused = override(voter)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert "the coordinator of the job is not lost" in refused.stderr
        other = launch("override", voters[0], "--rdzv-id=other", "--yes")
        assert other.returncode == 1
        assert "this is a voter of another job" in other.stderr
        nodes.stop("127.0.0.1", "127.0.0.2", "127.0.0.3")


def test_a_witness_refuses() -> None:
    address = witness_endpoint()
    with listening("--witness", "--bind", address):
        refused = override(address)
    assert refused.returncode == 1
    assert "this is a witness, which runs no coordinator" in refused.stderr


def test_without_a_terminal_the_command_asks_for_yes() -> None:
    refused = launch("override", "127.0.0.1:1", "--rdzv-id=job")
    assert refused.returncode == _C.EXIT_USAGE
    assert "add --yes" in refused.stderr


def test_at_a_terminal_the_command_names_the_risk_and_asks() -> None:
    leader, follower = pty.openpty()
    words = ("override", "127.0.0.1:1", "--rdzv-id=job")
    with launched(*words, stdin=follower) as process:
        os.write(leader, b"n\n")
        _, said = process.communicate(timeout=DEADLINE_S)
    os.close(leader)
    os.close(follower)
    assert process.returncode == 1
    assert "two jobs run from the same checkpoint and write the same files" in said
    assert "not confirmed, nothing was done" in said
