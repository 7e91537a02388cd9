"""--node-check: hosts are tested before they join, and after failures."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.launching import DEADLINE_S, await_line, free_endpoint, launch, shell_job

SCRIPT = ("--no-python", "sh", "-c", "echo started")


def host(name: str) -> Callable[..., list[str]]:
    """A prefix of a command that gives it this host name."""
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("host names cannot be set here")
    script = 'hostname "$0"; exec "$@"'
    return lambda *command: ["unshare", "--uts", "sh", "-c", script, name, *command]


def check(body: str) -> str:
    return "--node-check=" + shlex.join(["sh", "-c", body])


@pytest.mark.smoke
def test_bad_node_does_not_join(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    events = tmp_path / "events.jsonl"
    body = "echo GPU 3 is lost; exit 1"
    options = (check(body), f"--result-json={result}", f"--event-log={events}")
    done = launch("--standalone", *options, *SCRIPT)
    assert done.returncode == 79, done.stderr
    line = json.loads(done.stdout)  # the only line: no worker was started
    name = shlex.join(["sh", "-c", body])
    assert (line["event"], line["check"], line["reason"]) == ("bad_host", name, "GPU 3 is lost")
    assert "GPU 3 is lost; this node does not join" in done.stderr
    written = json.loads(result.read_text())
    assert (written["exit_code"], written["class"]) == (79, "infrastructure")
    found = {"host": os.uname().nodename, "check": name, "reason": "GPU 3 is lost"}
    assert written["bad_host"] == found
    assert written["node_checks"] == [found | {"verdict": "bad"}]
    lines = map(json.loads, events.read_text().splitlines())
    found = [one for one in lines if one["event"] == "node_check"]
    assert [(one["verdict"], one["reason"]) for one in found] == [("bad", "GPU 3 is lost")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((check("exit 3"),), "it exited with code 3"),
        ((check("kill -SEGV $$"),), "it was killed by signal 11 (SIGSEGV)"),
        (("--node-check=/no/such/check",), "it could not be started: exec /no/such/check"),
        ((check("sleep 1000"), "--node-check-timeout=0.2"), "it did not end within 200 ms"),
        ((check('echo \'{"overall_severity": "UNKNOWN"}\'; exit 1'),), "overall_severity is UNK"),
    ],
)
def test_unknown_is_a_warning_and_the_node_joins(options: tuple[str, ...], reason: str) -> None:
    done = launch("--standalone", *options, *SCRIPT)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
    assert f"is unknown: {reason}" in done.stderr


def test_loud_check_with_a_verdict_at_its_end() -> None:
    verdict = '{"verdict": "bad", "reason": "r"}'
    body = f"head -c 10000000 /dev/zero | tr '\\0' x; echo; echo '{verdict}'"
    done = launch("--standalone", check(body), *SCRIPT)
    assert (done.returncode, json.loads(done.stdout)["reason"]) == (79, "r"), done.stderr


def test_check_knows_its_job_and_has_no_stdin(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = (
        'echo "$ELASTIC_CHECK $ELASTIC_CHECK_TIMEOUT $LOCAL_WORLD_SIZE '
        f'${{RANK-none}}" > {seen}; cat >> {seen}'
    )
    options = (check(body), "--nproc-per-node=2")
    done = launch("--standalone", *options, *SCRIPT, input="not for the check")
    assert done.returncode == 0, done.stderr
    assert seen.read_text() == "join 60 2 none\n"


def test_nothing_of_a_hung_check_remains(tmp_path: Path) -> None:
    """It is killed with its group, and what left the group with the launcher."""
    held = tmp_path / "held"
    body = f"exec 9> {held}; flock 9; sleep 1000 & setsid sleep 1000 & wait"
    done = launch("--standalone", check(body), "--node-check-timeout=1", *SCRIPT)
    assert done.returncode == 0, done.stderr
    with held.open() as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no process holds the descriptor


@pytest.mark.smoke
def test_node_that_is_bad_after_a_failure_leaves_and_a_spare_takes_its_place(
    tmp_path: Path,
) -> None:
    found = tmp_path / "found"
    worker = f"""
        echo round $ELASTIC_ROUND
        test $ELASTIC_ROUND != 0 && exit
        until test -e {found}; do sleep 0.02; done
        test "$BAD" = 1 && exit 3
        exec sleep 1000
    """
    body = 'test "$ELASTIC_CHECK" = join || test "$BAD" != 1 || { echo no memory; exit 2; }'
    options = ("--rdzv-conf=settle=0", "--max-restarts=1", check(body))
    with shell_job(free_endpoint(), "2", worker, *options) as nodes:
        good = nodes.start(on=host("good1"))
        await_line(good, "as host")  # the coordinator stays
        bad = nodes.start(on=host("bad"), BAD="1")
        assert bad.stdout.readline() == "round 0\n"
        await_line(nodes.start(on=host("good2")), "waiting at")
        found.touch()
        done = nodes.finish_with(0, 79, 0)
    assert "no memory; this node leaves the job" in done[1].stderr
    assert json.loads(done[1].stdout.splitlines()[-1])["reason"] == "no memory"


def test_other_nodes_of_a_job_that_a_bad_host_ends_have_another_code() -> None:
    """A scheduler that drains the host of each node with 79 takes one host."""
    worker = 'echo round; test "$BAD" = 1 && exit 3; exec sleep 1000'
    body = 'test "$ELASTIC_CHECK" = join || test "$BAD" != 1 || exit 2'
    options = ("--max-restarts=1", "--on-node-loss=fail", check(body))
    with shell_job(free_endpoint(), "2", worker, *options) as nodes:
        good = nodes.start(on=host("good"))
        await_line(good, "as host")
        nodes.start(on=host("bad"), BAD="1")
        done = nodes.finish_with(78, 79)
    assert "bad_host" not in done[0].stdout
    assert json.loads(done[1].stdout.splitlines()[-1])["host"] == "bad"


@pytest.mark.parametrize("hangs_first", [True, False])
def test_a_hung_check_does_not_delay_the_other_node(hangs_first: bool, tmp_path: Path) -> None:
    """Also where its node would host the coordinator."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    body = f'test "$HUNG" != 1 || {{ echo > {begun}; exec sleep 1000; }}'
    options = ("--rdzv-conf=last_call_timeout=0", "--node-check-timeout=900", check(body))
    worker = "echo trains; read line < $GO"
    go = tmp_path / "go"
    os.mkfifo(go)
    with shell_job(free_endpoint(), "1:2", worker, *options) as nodes:

        def start_hung() -> None:
            nodes.start(HUNG="1")
            assert begun.read_text() == "\n"  # waits until the check runs

        if hangs_first:
            start_hung()
        good = nodes.start(GO=str(go))
        assert good.stdout.readline() == "trains\n"
        if not hangs_first:
            start_hung()
        go.write_text("\n")
        assert good.wait(DEADLINE_S) == 0
        hung = nodes.nodes[0 if hangs_first else 1]
        assert hung.poll() is None, "its check still runs"
        hung.terminate()
        done = nodes.finish()
    found = {(node.returncode, node.stdout) for node in done}
    assert found == {(0, ""), (143, "")}, done


def test_several_checks_run_at_once(tmp_path: Path) -> None:
    """Each waits for the other."""
    a, b = tmp_path / "a", tmp_path / "b"
    meet = "touch {0}; until test -e {1}; do sleep 0.02; done"
    options = (check(meet.format(a, b)), check(meet.format(b, a)))
    done = launch("--standalone", *options, *SCRIPT)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


def test_plan_and_wrong_commands() -> None:
    shown = launch("--dry-run", "--standalone", "--node-check=gpu", "--node-check=a b", *SCRIPT)
    assert "node check 1" in shown.stdout and "a b" in shown.stdout
    done = launch("--standalone", "--node-check=a 'b", *SCRIPT)
    assert done.returncode == 2 and "cannot be split into words" in done.stderr


def test_built_in_check_without_its_package() -> None:
    """Unknown, whether the package, the driver or the GPU is missing."""
    pytest.importorskip("elastic")
    if "pynvml" in sys.modules:
        pytest.skip("this host has the package")
    done = launch("--standalone", "--node-check=gpu", *SCRIPT)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


def test_status_shows_what_was_found_on_the_hosts_of_a_job() -> None:
    endpoint = free_endpoint()
    worker = "echo runs >&2; exec sleep 1000"
    body = 'test "$(hostname)" != bad || { echo no disk; exit 1; }'
    options = ("--max-restarts=1", check(body), check("echo no driver; exit 3"))
    with shell_job(endpoint, "1:2", worker, "--rdzv-conf=last_call_timeout=0", *options) as nodes:
        good = nodes.start(on=host("good"))
        await_line(good, "runs")
        bad = nodes.start(on=host("bad"))
        assert bad.wait(60.0) == 79
        shown = launch("status", endpoint, "--rdzv-id=job")
        good.terminate()
        nodes.finish_with(143, 79)
    assert "  found        good at " in shown.stdout
    assert "unknown: no driver\n" in shown.stdout


def test_job_remembers_a_bad_host_that_did_not_join() -> None:
    endpoint = free_endpoint()
    worker = "echo runs >&2; exec sleep 1000"
    body = 'test "$(hostname)" != bad || { echo no disk; exit 1; }'
    options = ("--max-restarts=1", check(body))
    with shell_job(endpoint, "1:2", worker, "--rdzv-conf=last_call_timeout=0", *options) as nodes:
        good = nodes.start(on=host("good"))
        await_line(good, "runs")
        bad = nodes.start(on=host("bad"))
        assert bad.wait(60.0) == 79
        shown = launch("status", endpoint, "--rdzv-id=job")
        good.terminate()
        done = nodes.finish_with(143, 79)
    assert "  excluded     bad until " in shown.stdout and "no disk" in shown.stdout
    assert "no disk; this node does not join" in done[1].stderr
