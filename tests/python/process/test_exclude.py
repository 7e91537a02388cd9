"""A job that does without a host: by a rule of the failure policy, and by a command."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from elastic import _C

from support.coordinators import listening
from support.launching import (
    DEADLINE_S,
    Job,
    await_line,
    free_endpoint,
    job_at,
    launch,
    launched,
    shell_job,
)
from support.succession import ELECTED, REPLICATED, WORKER, Nodes
from support.waiting import eventually

RULES = """
[[rule]]
on = "exit 42"
do = "exclude"
"""
EXIT_EXCLUDED = 79
NO_LAST_CALL = "--rdzv-conf=last_call_timeout=0"


@pytest.fixture(autouse=True)
def _host_names() -> None:
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot give a process a host name of its own")


def host(name: str) -> Callable[..., list[str]]:
    script = 'hostname "$0"; exec "$@"'
    return lambda *command: ["unshare", "--uts", "sh", "-c", script, name, *command]


def until_end(folder: Path) -> str:
    """The end of a worker's script, which waits for ``end()``."""
    for name in ("good1", "good2", "bad"):
        os.mkfifo(folder / name)
    return f"read text < {folder}/$(hostname); exit 0"


def end(folder: Path, *hosts: str) -> None:
    for name in hosts:
        (folder / name).write_text("")  # waits until the worker reads


def assert_last_line(
    *nodes: subprocess.CompletedProcess[str], why: str, run_id: str = "job"
) -> None:
    """What schedulers read, after each exit with 79."""
    for node in nodes:
        line = json.loads(node.stdout.splitlines()[-1])
        assert list(line) == ["event", "run_id", "host", "reason"]
        assert (line["event"], line["run_id"], line["host"]) == ("excluded_host", run_id, "bad")
        assert line["reason"].startswith("the job does without host bad for a while: ")
        assert why in line["reason"]


@pytest.mark.smoke
def test_a_rule_excludes_the_host_of_a_failure(tmp_path: Path) -> None:
    rules, news = tmp_path / "policy.toml", tmp_path / "news"
    rules.write_text(RULES)
    os.mkfifo(news)
    worker = "test $ELASTIC_ROUND = 0 || exit 0; test $(hostname) = bad && exit 42; exec sleep 1000"
    command = 'printf "%s\\n" "$ELASTIC_EXCLUDED_HOST" "$ELASTIC_EXCLUDED_REASON" '
    options = (
        f"--failure-policy={rules}",
        f'--on-exclude={command} "$ELASTIC_EXCLUDED_SECONDS" "$ELASTIC_RUN_ID" > {news}',
        "--restart-backoff=0",
        "--max-restarts=1",
    )
    events, result = tmp_path / "events.jsonl", tmp_path / "result.json"
    with shell_job(free_endpoint(), "2:3", worker, *options) as job:
        await_line(job.start(on=host("good1")), "as host")
        job.start(on=host("bad"))
        seen = (f"--event-log={events}", f"--result-json={result}")
        job.start(*seen, on=host("good2"))
        told = news.read_text().splitlines()
        done = job.finish_with(0, EXIT_EXCLUDED, 0)
    why = "rule 1 (line 2) of the failure policy excludes host bad"
    assert told == ["bad", why, "3600", "job"]
    assert f"the job does without host bad for a while: {why}" in done[1].stderr
    assert_last_line(done[1], why=why)
    assert not any("excluded_host" in done[i].stdout for i in (0, 2))
    line = f"host bad is excluded for 1 h: {why}"
    for node in (done[0], done[2]):
        assert line in node.stderr
    lines = map(json.loads, events.read_text().splitlines())
    assert [one["message"] for one in lines if one["event"] == "host_excluded"] == [line]
    written = json.loads(result.read_text())
    assert [one["message"] for one in written["hosts"]] == [line]
    assert written["excluded_host"] is None


def test_a_command_excludes_a_host_and_readmits_it() -> None:
    endpoint = free_endpoint()
    worker = "test $ELASTIC_ROUND -ge 2 && exit 0; echo runs >&2; exec sleep 1000"
    job_name = (endpoint, "--rdzv-id=job")
    with shell_job(endpoint, "2:3", worker, "--max-restarts=1") as job:
        nodes = [job.start(on=host("good1"))]
        await_line(nodes[0], "as host")
        nodes += [job.start(on=host(name)) for name in ("bad", "good2")]
        for node in nodes:
            await_line(node, "runs")
        unnamed = launch("exclude", "bad")
        excluded = launch("exclude", *job_name, "bad", "--reason=fan 3")
        assert nodes[1].wait(60.0) == EXIT_EXCLUDED
        await_line(nodes[0], "runs")
        shown = launch("status", *job_name)
        seen = json.loads(launch("status", *job_name, "--json").stdout)
        again = job.start(on=host("bad"))
        assert again.wait(60.0) == EXIT_EXCLUDED
        readmitted = launch("readmit", *job_name, "bad")
        twice = launch("readmit", *job_name, "bad")
        job.start(on=host("bad"))
        done = job.finish_with(0, EXIT_EXCLUDED, 0, EXIT_EXCLUDED, 0)
    assert_last_line(done[1], done[3], why="fan 3")
    assert unnamed.returncode == 2
    assert "exclude changes a job, so name it" in unnamed.stderr
    assert (excluded.returncode, excluded.stderr) == (0, "")
    assert excluded.stdout == "host bad is excluded for 1 h; the round ends for that\n"
    assert "  excluded     bad until " in shown.stdout
    assert ": fan 3\n" in shown.stdout
    assert [one["cause"] for one in seen["rounds"]] == ["node_left", None]
    assert readmitted.stdout == "host bad is no longer excluded\n"
    assert (twice.returncode, twice.stdout) == (1, "host bad is not excluded\n")


@pytest.mark.parametrize("has_token", [False, True], ids=["open", "token"])
def test_a_command_finds_the_coordinator_of_an_excluded_host(
    has_token: bool, tmp_path: Path
) -> None:
    """It is handed over, and nothing listens at the job's endpoint any more."""
    endpoint, token = free_endpoint(), tmp_path / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    secret = [f"--token-file={token}"] if has_token else []
    worker = "echo runs >&2; exec sleep 1000"
    with shell_job(endpoint, "2:3", worker, "--max-restarts=1", *secret) as job:
        nodes = [job.start(on=host("bad"))]
        await_line(nodes[0], "as host")
        nodes += [job.start(on=host(name)) for name in ("good1", "good2")]
        for node in nodes:
            await_line(node, "runs")
        excluded = launch("exclude", endpoint, *secret, "bad", "--reason=fan 3")
        assert nodes[0].wait(60.0) == EXIT_EXCLUDED
        await_line(nodes[1], "runs")
        shown = launch("status", endpoint, *secret)
        stacks = launch("stacks", endpoint, "--rdzv-id=job", *secret)
        readmitted = launch("readmit", endpoint, *secret, "bad")
        again = launch("exclude", endpoint, *secret, "bad")
        drained = launch("drain", endpoint, *secret, "--deadline=0.1")
        done = job.finish_with(EXIT_EXCLUDED, 143, 143)
    assert_last_line(done[0], why="fan 3")
    assert excluded.stdout == "host bad is excluded for 1 h; the round ends for that\n"
    assert "  excluded     bad until " in shown.stdout, shown.stderr
    assert stacks.stdout.startswith("stacks of round 1\n"), stacks.stderr
    assert readmitted.stdout == "host bad is no longer excluded\n", readmitted.stderr
    assert again.stdout.startswith("host bad is excluded for 1 h"), again.stderr
    assert drained.stdout.startswith("stopped without an agreed step"), drained.stderr


def test_a_command_names_another_way_where_nothing_answers() -> None:
    done = launch("readmit", free_endpoint(), "n7")
    assert done.returncode == _C.EXIT_JOIN_TIMED_OUT
    assert "Connection refused; if the job runs, its coordinator may have moved: name the job" in (
        done.stderr
    )


def test_a_bad_host_whose_node_comes_before_all_others_is_remembered() -> None:
    endpoint = free_endpoint()
    with listening(f"--bind={endpoint}") as coordinator:
        with shell_job(endpoint, "2:3", "echo runs >&2; exec sleep 1000", NO_LAST_CALL) as job:
            bad = job.start("--node-check=sh -c 'echo fan; exit 1'", on=host("bad"))
            assert bad.wait(60.0) == EXIT_EXCLUDED
            for node in [job.start(on=host(name)) for name in ("good1", "good2")]:
                await_line(node, "runs")
            shown = launch("status", endpoint)
            for node in job.nodes[1:]:
                node.terminate()
            job.finish_with(EXIT_EXCLUDED, 143, 143)
        coordinator.terminate()
        _, log = coordinator.communicate(timeout=DEADLINE_S)
    assert "  excluded     bad until " in shown.stdout, shown.stdout
    assert "fan; no node has joined yet" in log


@pytest.mark.parametrize("restarts", [False, True], ids=["runs", "restarts"])
def test_the_next_job_of_the_id_does_without_the_host(restarts: bool, tmp_path: Path) -> None:
    """Its coordinator runs on, or has a state file and starts again between the two."""
    endpoint, news = free_endpoint(), tmp_path / "news"
    os.mkfifo(news)
    options = (
        f"--bind={endpoint}",
        f"--state-file={tmp_path / 'state'}",
        f"--on-exclude=echo $ELASTIC_EXCLUDED_HOST in $ELASTIC_RUN_ID > {news}",
    )
    worker = f"echo runs >&2; {until_end(tmp_path)}"

    def start(job: Job, *names: str) -> None:
        for name in names:
            job.start(on=host(name))
        for node in job.nodes:
            await_line(node, "runs")

    with ExitStack() as stack:
        first = stack.enter_context(listening(*options))
        with shell_job(endpoint, "2:3", worker, "--max-restarts=1") as job:
            start(job, "good1", "good2", "bad")
            assert launch("exclude", endpoint, "bad").returncode == 0
            told = news.read_text()
            assert job.nodes[2].wait(60.0) == EXIT_EXCLUDED
            for node in job.nodes[:2]:
                await_line(node, "runs")
            end(tmp_path, "good1", "good2")
            job.finish_with(0, 0, EXIT_EXCLUDED)
        if restarts:
            state = tmp_path / "state"
            eventually(lambda: b"good1" not in state.read_bytes())
            first.terminate()
            assert first.wait(DEADLINE_S) == 0
            stack.enter_context(listening(*options))
        with shell_job(endpoint, "2:3", worker, "--max-restarts=1", NO_LAST_CALL) as job:
            start(job, "good1", "good2")
            shown = launch("status", endpoint)
            assert job.start(on=host("bad")).wait(60.0) == EXIT_EXCLUDED
            end(tmp_path, "good1", "good2")
            done = job.finish_with(0, 0, EXIT_EXCLUDED)
    assert_last_line(done[2], why="")
    assert told == "bad in job\n"
    assert "  excluded     bad until " in shown.stdout, shown.stderr


def test_the_next_job_of_the_id_in_a_store_does_without_the_host(tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = ("--rdzv-backend=file", f"--rdzv-endpoint={store}", "--max-restarts=1")
    worker = f"echo runs >&2; {until_end(tmp_path)}"
    job_name = (f"file://{store}", "--rdzv-id=job")
    with shell_job("", "2:3", worker, *options) as job:
        for name in ("good1", "good2", "bad"):
            job.start(on=host(name))
        for node in job.nodes:
            await_line(node, "runs")
        excluded = launch("exclude", *job_name, "bad")
        assert job.nodes[2].wait(60.0) == EXIT_EXCLUDED, excluded.stderr
        for node in job.nodes[:2]:
            await_line(node, "runs")
        end(tmp_path, "good1", "good2")
        job.finish_with(0, 0, EXIT_EXCLUDED)
    with shell_job("", "2:3", worker, *options, NO_LAST_CALL) as job:
        for name in ("good1", "good2"):
            job.start(on=host(name))
        for node in job.nodes:
            await_line(node, "runs")
        shown = launch("status", *job_name)
        assert job.start(on=host("bad")).wait(60.0) == EXIT_EXCLUDED
        end(tmp_path, "good1", "good2")
        job.finish_with(0, 0, EXIT_EXCLUDED)
    assert "  excluded     bad until " in shown.stdout, shown.stderr


def test_the_memory_survives_the_loss_of_the_coordinators_node() -> None:
    endpoint = free_endpoint()
    with shell_job(endpoint, "2:4", WORKER, "--max-restarts=1") as job:
        nodes = Nodes(job, on=lambda number: host(f"n{number}"))
        nodes.start(1)
        nodes.await_log("127.0.0.1", "as host")
        nodes.start(2, 3, 4)
        assert nodes.size("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4") == 4
        nodes.await_log("127.0.0.1", REPLICATED)
        excluded = launch("exclude", endpoint, "n4", "--reason=fan 3")
        assert nodes.processes["127.0.0.4"].wait(DEADLINE_S) == EXIT_EXCLUDED, excluded.stderr
        assert nodes.size("127.0.0.1", "127.0.0.2", "127.0.0.3") == 3
        nodes.kill("127.0.0.1")
        assert nodes.size("127.0.0.2", "127.0.0.3") == 2
        nodes.await_log("127.0.0.2", ELECTED)
        shown = launch("status", endpoint, "--rdzv-id=job")
        nodes.on = lambda _: host("n4")
        nodes.start(1)  # at the endpoint, where it could host a job of its own
        again = nodes.processes["127.0.0.1"].wait(60.0)
        nodes.stop("127.0.0.2", "127.0.0.3")
        job.finish()
    assert "  excluded     n4 until " in shown.stdout, shown.stderr
    assert again == EXIT_EXCLUDED


STRAGGLER = """
import os, select, sys
from elastic import worker
if worker.is_restart():
    sys.exit()
for step in range(1, 10**9):
    is_bad = os.uname().nodename == "bad"
    select.select([], [], [], None if is_bad and step > 3 else 0.02)
    worker.progress(step)
"""


def test_a_rule_excludes_the_host_of_a_straggler(tmp_path: Path) -> None:
    rules, script = tmp_path / "policy.toml", tmp_path / "script.py"
    rules.write_text('[[rule]]\non = "straggler"\nfor = 7\ndo = "exclude"\n')
    script.write_text(STRAGGLER)
    options = (f"--failure-policy={rules}", "--hang-timeout=6", "--restart-backoff=0")
    with job_at(free_endpoint(), "2:3", [str(script)], *options, "--shutdown-timeout=1") as job:
        await_line(job.start(on=host("good1")), "as host")
        for name in ("bad", "good2"):
            job.start(on=host(name))
        done = job.finish_with(0, EXIT_EXCLUDED, 0)
    assert_last_line(done[1], why="rule 1 (line 1) of the failure policy excludes host bad: rank ")
    assert "while other ranks advanced" in done[1].stdout.splitlines()[-1]


STAYS = "host bad is excluded for 1 h; its node stays"


def test_a_node_whose_workers_have_finished_stays(tmp_path: Path) -> None:
    """The round that it has finished its part of goes on."""
    endpoint = free_endpoint()
    worker = f"test $(hostname) = bad && exit 0; echo runs >&2; {until_end(tmp_path)}"
    with shell_job(endpoint, "2:3", worker, "--max-restarts=1") as job:
        for name in ("good1", "good2", "bad"):
            job.start(on=host(name))
        for node in job.nodes[:2]:
            await_line(node, "runs")
        await_line(job.nodes[2], "1 done")
        excluded = launch("exclude", endpoint, "bad")
        shown = launch("status", endpoint)
        end(tmp_path, "good1", "good2")
        job.finish_with(0, 0, 0)
    assert excluded.stdout == f"{STAYS} until another round follows: the workers have finished\n"
    assert "  excluded     bad until " in shown.stdout, shown.stderr


def test_a_job_that_stops_at_a_step_keeps_its_nodes_until_then() -> None:
    endpoint = free_endpoint()
    worker = "echo runs >&2; exec sleep 1000"
    with shell_job(endpoint, "2:3", worker, "--max-restarts=1") as job:
        for name in ("good1", "good2", "bad"):
            job.start(on=host(name))
        for node in job.nodes:
            await_line(node, "runs")
        with launched("drain", endpoint, "--deadline=4") as drain:
            await_line(job.nodes[2], "stopping all ranks at an agreed step")
            excluded = launch("exclude", endpoint, "bad")
            drain.end(3)
        job.finish_with(143, 143, 143)
    assert excluded.stdout.startswith(f"{STAYS}: stopping all ranks at an agreed step (")
