"""Several launchers on this machine form one job: their output and exit codes."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

from support.launching import DEADLINE_S, Job, await_line, free_endpoint, launch, shell_job
from support.succession import snapshot

RANKS = "echo rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE"

# Without is_host, the first of two agents on one machine to start hosts the coordinator.
HOST, GUEST = "--rdzv-conf=is_host=true", "--rdzv-conf=is_host=false"


def job(
    nnodes: str, *words: str, conf: str = "", script: str = RANKS, endpoint: str | None = None
) -> Job:
    """Nodes whose workers run a shell script; the first of this machine to start is the host."""
    settings = [f"--rdzv-conf={conf}"] if conf else []
    words = ("--shutdown-timeout=5", *settings, *words)
    return shell_job(endpoint or free_endpoint(), nnodes, script, *words)


def node_name(pid: int) -> str:
    """The pattern of an agent's name in messages."""
    return rf"{re.escape(socket.gethostname())}_{pid}"


def test_ranks_are_dense_over_nodes_of_different_size() -> None:
    with job("3") as nodes:
        for workers in (2, 1, 3):
            nodes.start(f"--nproc-per-node={workers}")
        done = nodes.succeed()
    lines = [line for node in done for line in node.stdout.splitlines()]
    assert sorted(line.split(",")[0] for line in lines) == [
        f"rank {rank} of 6" for rank in range(6)
    ]
    for node in done:
        ranks = sorted(int(line.split()[1]) for line in node.stdout.splitlines())
        assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))
        lines = node.stderr.splitlines()
        assert all(line.startswith("elastic-launch: ") for line in lines), node.stderr


def test_first_failure_ends_all_nodes_with_its_code_and_report(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    fails = f"until test -e {begun}; do sleep 0.02; done; exit 7"
    with job("2", script=f"test $RANK = 1 && {{ {fails}; }}; touch {begun}; sleep 1000") as nodes:
        nodes.start("--node-rank=0")
        nodes.start("--node-rank=1")
        here, there = nodes.finish()
    assert (here.returncode, there.returncode) == (7, 7)
    assert re.search(r"failed: rank 1 .*exited with code 7", there.stderr), there.stderr
    assert re.search(r"failed: .*rank 1 .*exited with code 7", here.stderr), here.stderr
    name = re.search(r"    node    (\S+)", here.stderr)
    assert name and f"    node    {name[1]}" in there.stderr
    assert "stopped by the launcher, not failed: rank 0" in here.stderr


@pytest.mark.smoke
def test_a_restart_is_one_for_all_nodes() -> None:
    script = (
        'echo round $TORCHELASTIC_RESTART_COUNT; test "$TORCHELASTIC_RESTART_COUNT" = 1 || exit 9'
    )
    with job("2", "--max-restarts=1", "--nproc-per-node=2", script=script) as nodes:
        nodes.start()
        nodes.start()
        done = nodes.succeed()
    for node in done:
        assert node.stdout.count("round 1") == 2
        assert node.stderr.count("0 of 1 restarts left") == 1


@pytest.mark.smoke
def test_spare_succeeds_with_the_job(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo $RANK; while ! test -e {go}; do sleep 0.05; done"
    with job("2", script=script) as nodes:
        for _ in range(2):
            nodes.start()
        for node in nodes.nodes:
            assert node.stdout.readline() in ("0\n", "1\n")
        nodes.start(LOGLEVEL="INFO")
        await_line(nodes.nodes[2], "spare")
        go.touch()
        done = nodes.succeed()
    assert done[2].stdout == ""


def test_a_second_job_at_the_endpoint_is_refused(tmp_path: Path) -> None:
    go = tmp_path / "go"
    options = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={free_endpoint()}"]
    script = f"echo $RANK; while ! test -e {go}; do sleep 0.05; done"
    with Job([*options, "--no-python"], ["sh", "-c", script]) as nodes:
        nodes.start_nodes(2, lines=1)
        other = launch(*options, "--no-python", "sh", "-c", "exit 0")
        go.touch()
        nodes.succeed()
    assert other.returncode == 76
    assert "all nodes of the job run sh (" in other.stderr
    assert "give each job its own --rdzv-id" in other.stderr


def test_stopped_node_does_not_end_the_others(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo world $WORLD_SIZE; while ! test -e {go}; do sleep 0.05; done"
    with job("1:2", script=script) as nodes:
        first = nodes.start("--node-rank=0", HOST)
        second = nodes.start("--node-rank=1", GUEST)
        assert first.stdout.readline() == "world 2\n"
        second.send_signal(signal.SIGTERM)
        assert first.stdout.readline() == "world 1\n"
        go.touch()
        nodes.finish_with(0, 143)


@pytest.mark.smoke
def test_static_ranks_and_port_are_kept_in_every_round() -> None:
    host, _, port = free_endpoint().rpartition(":")
    script = (
        "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && "
        "echo $GROUP_RANK $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RESTART_COUNT; "
        'test "$TORCHELASTIC_RESTART_COUNT" = 1 || exit 9'
    )
    options = ["--nnodes=2", f"--master-addr={host}", f"--master-port={port}", "--max-restarts=1"]
    with Job([*options, "--no-python"], ["bash", "-c", script]) as nodes:
        nodes.start("--node-rank=1")
        nodes.start("--node-rank=0")
        second, first = nodes.succeed()
    for rank, node in enumerate((first, second)):
        lines = [line.rpartition(" ") for line in node.stdout.splitlines()]
        assert {place for place, _, _ in lines} == {f"{rank} {host} {port}"}
        assert lines[-1][2] == "1"


def test_workers_port_range_can_be_set() -> None:
    _, _, port = free_endpoint().rpartition(":")
    script = "echo $MASTER_PORT"
    with job("2", f"--worker-port-range={port}:{port}", script=script) as nodes:
        nodes.start()
        nodes.start(f"--worker-port-range={int(port) + 1}:{int(port) + 20}")
        done = nodes.succeed()
    assert done[0].stdout == done[1].stdout
    assert int(port) <= int(done[0].stdout) <= int(port) + 20


def test_nodes_with_other_settings_are_rejected() -> None:
    common = ["--max-restarts=1", "--on-node-loss=fail"]
    others = {
        "--nnodes=3": ["2:3", "3", "nodes"],
        "--nnodes=2:4": ["3", "4", "nodes"],
        "--max-restarts=2": ["1", "2", "restarts"],
        "--on-node-loss=replace": ["fail", "replace"],
    }
    with job("2:3", *common, conf="last_call_timeout=60,join_timeout=60") as nodes:
        first = nodes.start(LOGLEVEL="INFO")
        await_line(nodes.nodes[0], "wait")
        for other, expected in others.items():
            refused = nodes.start(other)
            _, stderr = refused.end(76)
            assert all(word in stderr for word in expected), stderr
            assert "Traceback" not in stderr
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=DEADLINE_S)


def test_too_few_nodes_time_out_after_a_wait_that_is_logged_once() -> None:
    endpoint = free_endpoint()
    with job("2", conf="join_timeout=3", endpoint=endpoint) as nodes:
        nodes.start()
        (done,) = nodes.finish_with(75)
    assert re.search(r"1 .*2", done.stderr.splitlines()[-1]), done.stderr
    waits = [line for line in done.stderr.splitlines() if "waiting at" in line]
    assert len(waits) == 1, done.stderr
    assert re.fullmatch(
        rf"elastic-launch: waiting at {endpoint} as host: "
        rf"1 of 2 nodes joined \({node_name(nodes.nodes[0].pid)}\), gives up at \d\d:\d\d:\d\d",
        waits[0],
    ), waits[0]


def test_an_endpoint_that_only_this_host_has_is_a_warning_and_with_strict_an_error() -> None:
    warning = (
        "127.0.0.1 is a loopback address: if the nodes run on several hosts, each trains on its own"
    )
    with job("1:2") as nodes:
        nodes.start("--rdzv-conf=last_call_timeout=0")
        nodes.start("--strict")
        warned, refused = nodes.finish()
    assert (warned.returncode, refused.returncode) == (0, 2)
    assert warning in warned.stderr
    assert warning in refused.stderr


def test_unknown_backend_is_named() -> None:
    done = launch("--nnodes=2", "--rdzv-backend=c10", "--no-python", "true")
    assert done.returncode == 2
    assert "no rendezvous backend 'c10'" in done.stderr and "known are c10d, static" in done.stderr


def test_a_lost_node_is_named_where_none_can_replace_it() -> None:
    script = "echo $RANK; sleep 1000"
    with job("2", "--on-node-loss=fail", "--max-restarts=3", script=script) as nodes:
        first = nodes.start("--node-rank=0", HOST, LOGLEVEL="INFO")
        second = nodes.start("--node-rank=1", GUEST)
        assert (first.stdout.readline(), second.stdout.readline()) == ("0\n", "1\n")
        second.kill()
        done = nodes.finish()
    assert done[0].returncode == 78, done[0].stderr
    name = node_name(second.pid)
    assert re.search(rf"coordinator: job job: {name} is lost: ", done[0].stderr), done[0].stderr
    assert re.search(rf"failed: .*{name}", done[0].stderr), done[0].stderr


@pytest.mark.parametrize("leaver", [0, 1])
def test_all_nodes_end_with_the_code_of_the_one_without_which_there_are_too_few(
    leaver: int,
) -> None:
    script = "echo $RANK; sleep 1000"
    with job("2", "--on-node-loss=fail", "--max-restarts=3", script=script) as nodes:
        both = nodes.start("--node-rank=0", HOST), nodes.start("--node-rank=1", GUEST)
        assert [node.stdout.readline() for node in both] == ["0\n", "1\n"]
        both[leaver].send_signal(signal.SIGTERM)
        nodes.finish_with(143, 143)


def test_the_others_go_on_as_soon_as_a_killed_agent_has_ended_with_its_workers(
    tmp_path: Path,
) -> None:
    pid = tmp_path / "pid"
    script = f"""
    if test $ELASTIC_ROUND = 0; then
      test $RANK = 0 || echo $$ > {pid}
      echo ready
      exec sleep 1000
    fi
    kill -0 $(cat {pid}) 2> /dev/null && echo it runs || echo it has ended
    """
    conf, endpoint = "reconnect_grace=3600,last_call_timeout=3600", free_endpoint()
    with job("1:2", script=script, endpoint=endpoint) as nodes:
        nodes.start("--node-rank=0", f"{HOST},{conf}")
        nodes.start("--node-rank=1", f"{GUEST},{conf}")
        for node in nodes.nodes:
            assert node.stdout is not None
            assert node.stdout.readline() == "ready\n"
        # A later connection is served: the coordinator has reached the liveness port by then.
        snapshot(endpoint)
        nodes.nodes[1].kill()
        first, second = nodes.finish()
    assert (first.returncode, first.stdout) == (0, "it has ended\n"), first
    assert second.returncode == -signal.SIGKILL
    assert "was lost (its session was closed and its agent has ended)" in first.stderr


def test_one_node_can_keep_its_record_in_a_file(tmp_path: Path) -> None:
    record = tmp_path / "record"
    options = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={record}"]
    done = launch("--nnodes=1", *options, "--rdzv-id=job", "--no-python", "sh", "-c", RANKS)
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1, node 0 of 1\n"), done.stderr
    assert (tmp_path / "record.job").exists()
