"""Jobs that survive the loss of their coordinator: real agents, each on a loopback address of its
own, which counts as a host."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
from pathlib import Path

import pytest
from elastic import _C, observe

from support.coordinators import listening, needs_openssl
from support.launching import DEADLINE_S, Job, await_line, children, free_endpoint
from support.succession import (
    ELECTED,
    REPLICATED,
    Nodes,
    job,
    replicated_job,
    snapshot,
    witness_endpoint,
)
from support.waiting import eventually


def jobs_that_answer() -> list[observe.LocalJob]:
    """The jobs that ``elastic-launch status`` finds on this host without an endpoint."""
    return [one for one in observe.local_jobs(DEADLINE_S) if one.snapshot is not None]


def test_the_loss_of_the_coordinators_host_costs_one_node_until_it_is_replaced(
    tmp_path: Path,
) -> None:
    log = tmp_path / "events"
    with replicated_job(f"--event-log={log}") as nodes:
        endpoint = nodes.endpoint
        nodes.kill("127.0.0.1")
        assert nodes.world("127.0.0.2", "127.0.0.3") == (1, 2)
        moves = [
            nodes.await_log(address, rf"at (\S+) {ELECTED}: the former one at {endpoint} closed")
            for address in ("127.0.0.2", "127.0.0.3")
        ]
        # A new host can bind the endpoint, and would begin a job of its own there.
        nodes.start(1)
        assert nodes.world("127.0.0.1", "127.0.0.2", "127.0.0.3")[1] == 3
        shown = snapshot(endpoint)
        pids = {nodes.processes[f"127.0.0.{host}"].pid for host in (1, 2, 3)}
        eventually(lambda: pids in [set(one.pids) for one in jobs_that_answer()])
        nodes.stop("127.0.0.1", "127.0.0.2", "127.0.0.3")
    assert shown["nodes_in_round"] == 3
    coordinator = shown["coordinator"]
    assert coordinator["address"] == moves[0][1]
    assert {coordinator["term"]} == {int(move[2]) for move in moves}
    events = [json.loads(line) for line in log.read_text().splitlines()]
    moved = [event for event in events if event["event"] == "coordinator_moved"]
    assert len(moved) == 2
    for event in moved:
        assert event["from"] == endpoint
        assert event["cause"] == "connection_closed"
        assert event["coordinator"]["lineage"] == coordinator["lineage"]
        assert event["coordinator"]["address"] == coordinator["address"]
        assert event["coordinator"]["term"] == coordinator["term"]
        assert event["durations"]["move"] > 0
    assert all(event["coordinator"] for event in events if event["event"] == "round_starting")


@pytest.mark.smoke
def test_a_node_that_hosts_the_coordinator_hands_it_over_when_it_is_stopped() -> None:
    with replicated_job() as nodes:
        nodes.stop("127.0.0.1")
        assert nodes.size("127.0.0.2", "127.0.0.3") == 2
        for address in ("127.0.0.2", "127.0.0.3"):
            nodes.await_log(address, rf"{ELECTED}: the former one at \S+ handed it over")
        assert nodes.processes["127.0.0.1"].wait(DEADLINE_S) != 77
        nodes.stop("127.0.0.2", "127.0.0.3")


def test_with_one_voter_a_member_goes_on_when_the_hosting_agent_has_lost_its_guardian() -> None:
    with job(free_endpoint()) as started:
        nodes = Nodes(started, conf="voters=1")
        nodes.start(1, 2, 3)
        nodes.places("127.0.0.1", "127.0.0.2", "127.0.0.3")
        host = nodes.processes["127.0.0.1"]
        [guardian] = children(host.pid)
        os.kill(guardian, signal.SIGKILL)
        assert nodes.world("127.0.0.2", "127.0.0.3") == (1, 2)
        for address in ("127.0.0.2", "127.0.0.3"):
            nodes.await_log(address, rf"{ELECTED}: the former one at \S+ handed it over")
        assert host.wait(DEADLINE_S) == _C.EXIT_SUPERVISION_LOST
        nodes.stop("127.0.0.2", "127.0.0.3")


def test_a_node_that_finds_no_endpoint_names_each_one_and_why() -> None:
    ports = [free_endpoint().rpartition(":")[2] for _ in range(2)]
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    with job(endpoints) as started:
        started.start("--rdzv-conf=join_timeout=5,is_host=false")
        (done,) = started.finish_with(_C.EXIT_JOIN_TIMED_OUT)
    assert f"no coordinator was found at 127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]}" in done.stderr
    for port in ports:
        assert f"127.0.0.1:{port}: cannot connect" in done.stderr


def witnessed_job(
    endpoint: str, witness: str, run_id: str = "job", **environ: str
) -> tuple[Job, Nodes]:
    started = job(endpoint, nodes="1:2", run_id=run_id)
    return started, Nodes(started, conf=f"witness={witness}", **environ)


def test_with_a_witness_as_the_fifth_voter_four_hosts_survive_the_loss_of_two_at_once() -> None:
    address = witness_endpoint()
    with listening("--witness", "--bind", address), job(free_endpoint(), nodes="1:4") as started:
        nodes = Nodes(started, conf=f"witness={address}")
        hosts = [f"127.0.0.{number}" for number in (1, 2, 3, 4)]
        nodes.start(1, 2, 3, 4)
        nodes.places(*hosts)
        nodes.await_log(hosts[0], "survives the loss of any two hosts")
        nodes.kill(*hosts[:2])  # the coordinator's and one more
        assert nodes.world(*hosts[2:]) == (1, 2)
        nodes.stop(*hosts[2:])


def test_the_loss_of_the_witness_ends_no_round() -> None:
    address = witness_endpoint()
    started, nodes = witnessed_job(free_endpoint(), address)
    with started:
        with listening("--witness", "--bind", address) as witness:
            nodes.start(1, 2)
            before = nodes.places("127.0.0.1", "127.0.0.2")
            nodes.await_log("127.0.0.1", REPLICATED)
            witness.kill()
            nodes.await_log("127.0.0.1", "does not survive the loss of .*, which runs the coord")
        # Another life, which the coordinator finds again.
        with listening("--witness", "--bind", address):
            nodes.await_log("127.0.0.1", REPLICATED)
        for place in before.values():
            os.kill(place.pid, 0)
        nodes.stop("127.0.0.1", "127.0.0.2")


def test_two_jobs_share_a_witness_with_a_token_at_an_ipv6_address() -> None:
    needs_openssl()
    environ = {"ELASTIC_TOKEN": secrets.token_hex(32)}
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
        address = f"[::1]:{probe.getsockname()[1]}"
    first, of_first = witnessed_job(free_endpoint(), address, run_id="first", **environ)
    second, of_second = witnessed_job(free_endpoint(), address, run_id="second", **environ)
    with listening("--witness", "--bind", address, **environ), first, second:
        for nodes in (of_first, of_second):
            nodes.start(1, 2)
        for nodes in (of_first, of_second):
            nodes.places("127.0.0.1", "127.0.0.2")
            nodes.await_log("127.0.0.1", REPLICATED)
        # The second job still has its vote when the first one has lost its coordinator's host.
        for nodes in (of_first, of_second):
            nodes.kill("127.0.0.1")
            assert nodes.world("127.0.0.2") == (1, 1)
            nodes.await_log("127.0.0.2", rf"the coordinator of the job is at \S+ {ELECTED}")
            nodes.stop("127.0.0.2")


def test_nodes_with_different_lists_of_endpoints_are_refused() -> None:
    port = free_endpoint().rpartition(":")[2]
    first, second, third = (f"127.0.0.{number}:{port}" for number in (1, 2, 3))
    with job(f"{first},{second}", nodes="2") as started:
        nodes = Nodes(started)
        nodes.start(1)
        nodes.await_log("127.0.0.1", "waiting at .*: 1 of 2 nodes")
        with job(f"{first},{third}", nodes="2") as other:
            other.start("--local-addr=127.0.0.2", "--rdzv-conf=is_host=false,voters=3")
            (refused,) = other.finish()
        nodes.stop("127.0.0.1")
    assert refused.returncode == _C.EXIT_REJECTED
    assert f"the endpoints of this node are {first},{third}" in refused.stderr
    assert f"those of the job are {first},{second}" in refused.stderr


def test_the_loss_of_a_separate_coordinator_touches_no_worker() -> None:
    endpoint = free_endpoint()
    with (
        listening("--bind", endpoint, "--voters=3") as process,
        job(endpoint, nodes="3:4") as started,
    ):
        nodes = Nodes(started, host=0)
        nodes.start(1, 2, 3, 4)
        before = nodes.places(*nodes.processes)
        await_line(process, REPLICATED)
        process.kill()
        for address in before:
            nodes.await_log(address, rf"the coordinator of the job is at \S+ {ELECTED}")
        # The new coordinator decides: a further loss ends the round for the survivors.
        nodes.kill("127.0.0.4")
        assert nodes.world("127.0.0.1", "127.0.0.2", "127.0.0.3") == (1, 3)
        nodes.stop("127.0.0.1", "127.0.0.2", "127.0.0.3")


GIVES_WAY = r"the job runs already, with the coordinator at (\S+), and continues there"


def test_a_job_that_a_replaced_host_has_begun_dissolves_when_it_meets_the_elected_one(
    tmp_path: Path,
) -> None:
    needs_openssl()
    secret, token_file = secrets.token_hex(32), tmp_path / "token"
    token_file.touch(0o600)
    token_file.write_text(secret)
    # The survivors are stopped for longer than node_timeout's default on a busy host.
    with replicated_job(conf="voters=3,node_timeout=60", ELASTIC_TOKEN=secret) as nodes:
        nodes.kill("127.0.0.1")
        assert nodes.world("127.0.0.2", "127.0.0.3") == (1, 2)
        moved = nodes.await_log("127.0.0.2", rf"at (\S+) {ELECTED}")
        # No process announces the elected coordinator meanwhile.
        survivors = [nodes.processes[address] for address in ("127.0.0.2", "127.0.0.3")]
        for agent in survivors:
            agent.send_signal(signal.SIGSTOP)
        nodes.start(1, 4, 5)
        second = nodes.places("127.0.0.1", "127.0.0.4", "127.0.0.5")
        assert {(place.round, place.world_size) for place in second.values()} == {(0, 3)}
        for agent in survivors:
            agent.send_signal(signal.SIGCONT)
        for address in second:
            nodes.await_log(address, GIVES_WAY)
        # The job has no restart: a charge would end it.
        assert nodes.size("127.0.0.2", "127.0.0.3") == 3
        ended = [Path("/proc", str(place.pid)) for place in second.values()]
        eventually(lambda: not any(path.exists() for path in ended))
        with observe.connect(nodes.endpoint, "job", token_file=str(token_file)) as seen:
            shown = seen.next(DEADLINE_S)
            while shown is not None and len(shown["nodes"]) < 5:
                shown = seen.next(DEADLINE_S)
        assert shown is not None and shown["nodes_in_round"] == 3
        assert shown["coordinator"]["address"] == moved[1]
        nodes.stop(*nodes.processes)


def coordinated(endpoint: str, state: Path) -> tuple[str, ...]:
    return ("--bind", endpoint, "--voters=3", f"--state-file={state}")


def test_a_state_file_gives_no_authority_over_a_job_that_has_got_more_voters(
    tmp_path: Path,
) -> None:
    endpoint, state = free_endpoint(), tmp_path / "state"
    options = coordinated(endpoint, state)
    with job(endpoint, nodes="2:4") as started:
        nodes = Nodes(started, host=0, conf="voters=3,last_call_timeout=2")
        with listening(*options) as process:
            nodes.start(1, 2)
            before = nodes.places("127.0.0.1", "127.0.0.2")
            await_line(process, "round 0 is complete: 2 nodes")
            eventually(lambda: b"127.0.0.2" in state.read_bytes())
            process.kill()
        # Two hosts: one voter, whose authority is in the file.
        with listening(*options, first="job job: continues from its stored state") as process:
            for place in before.values():
                os.kill(place.pid, 0)
            nodes.start(3)
            assert nodes.size("127.0.0.1", "127.0.0.2", "127.0.0.3") == 3
            await_line(process, REPLICATED)
            assert b"127.0.0.2" not in state.read_bytes()
            process.kill()
        with listening(*options):
            for address in nodes.processes:
                nodes.await_log(address, rf"the coordinator of the job is at \S+ {ELECTED}")
            nodes.kill("127.0.0.3")
            assert nodes.size("127.0.0.1", "127.0.0.2") == 2
            # A node that knows the endpoint only is directed from there.
            nodes.start(4)
            assert nodes.size("127.0.0.1", "127.0.0.2", "127.0.0.4") == 3
            nodes.stop("127.0.0.1", "127.0.0.2", "127.0.0.4")


def test_a_job_gets_no_second_voter_while_its_state_file_cannot_be_written(tmp_path: Path) -> None:
    endpoint, state = free_endpoint(), tmp_path / "state"
    with listening(*coordinated(endpoint, state)) as process, job(endpoint, nodes="3") as started:
        state.unlink()
        state.mkdir()
        nodes = Nodes(started, host=0)
        nodes.start(1, 2, 3)
        await_line(process, "no round begins until it can be written")
        with observe.connect(endpoint, "job") as seen:
            for _ in range(3):
                shown = seen.next(DEADLINE_S)
                assert shown is not None and shown["coordinator"]["voters"] == []
        state.rmdir()
        nodes.places(*nodes.processes)
        await_line(process, REPLICATED)
        nodes.stop(*nodes.processes)
