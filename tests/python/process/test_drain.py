"""Stops at an agreed step with real processes: all ranks stop at one step, or the job says why not.

``ELASTIC_DRAIN_ROUNDS=1000 python -m pytest tests/python/process/test_drain.py -k random`` gives so
many notices at random moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from support.launching import (
    Job,
    Process,
    await_line,
    free_endpoint,
    job_at,
    launch,
    launched,
    launcher_command,
    run_program,
)
from support.stopping import EXIT_STOPPED, MANY, STUB, await_steps, stops
from support.waiting import let_echoes_pass, stall_for_test

ROUNDS = int(os.environ.get("ELASTIC_DRAIN_ROUNDS", "4"))


def check_one_step(directory: Path, ranks: int) -> int:
    at = stops(directory)
    assert sorted(at) == [f"stopped.0.{rank}" for rank in range(ranks)], at
    (step,) = set(at.values())
    return step


def stopped(job: Process) -> str:
    """What a job prints that stops at an agreed step because of SIGTERM."""
    job.terminate()
    _, stderr = job.end(EXIT_STOPPED)
    return stderr


def two_nodes(endpoint: str, program: list[str], *options: str) -> Job:
    return job_at(endpoint, "2", program, "--nproc-per-node=2", *options, run_id="drain")


@pytest.mark.smoke
def test_ranks_of_one_node_stop_at_one_step(tmp_path: Path) -> None:
    result, events = tmp_path / "result.json", tmp_path / "events"
    options = ("--standalone", "--nproc-per-node=2", "--drain=60", f"--result-json={result}")
    with launched(*options, f"--event-log={events}", STUB, str(tmp_path), MANY, "1") as job:
        await_steps(job, 2)
        stderr = stopped(job)
    step = check_one_step(tmp_path, 2)
    assert f"every rank stops at step {step}" in stderr
    assert f"stopped at step {step} on every rank, resumable (signal 15 (SIGTERM)" in stderr
    assert "failed" not in stderr
    written = json.loads(result.read_text())
    assert (written["state"], written["exit_code"]) == ("STOPPED", EXIT_STOPPED)
    assert written["first_failure"] is None
    kinds = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert "drain" in kinds
    assert "restarting" not in kinds


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_random_notice_to_one_of_two_nodes(turn: int, tmp_path: Path) -> None:
    chance = random.Random(turn)
    steps = MANY if turn % 4 else str(chance.randrange(4, 60))  # around the last step, too
    pace = chance.choice(["0", "1", "20"])
    program = [STUB, str(tmp_path), steps, pace]
    with two_nodes(free_endpoint(), program, "--drain=60", "--max-restarts=1") as job:
        job.start_nodes(2, 2)
        stall_for_test(chance.uniform(0, 0.3))
        chance.choice(job.nodes).send_signal(signal.SIGTERM)
        nodes = job.finish()
    codes = {node.returncode for node in nodes}
    logs = "\n".join(node.stderr for node in nodes)
    at = stops(tmp_path)
    assert len(at) == 4, logs
    assert len(set(at.values())) == 1, (at, logs)
    if any(name.startswith("stopped") for name in at):
        assert codes == {EXIT_STOPPED}, logs
    else:  # every rank had finished before
        assert codes <= {0, 143}, logs


def test_a_second_signal_after_a_drain_signal_is_the_ordinary_stop(tmp_path: Path) -> None:
    script = tmp_path / "silent.py"
    script.write_text("import signal\nprint('begun', flush=True)\nsignal.pause()\n")
    with launched("--standalone", "--drain-signal=USR1", str(script)) as job:
        assert job.stdout.readline() == "begun\n"
        job.send_signal(signal.SIGUSR1)
        await_line(job, r"stopping all ranks at an agreed step \(signal 10 \(SIGUSR1\)")
        await_line(job, "waiting: no rank has reported a step")
        let_echoes_pass()
        job.send_signal(signal.SIGTERM)
        job.end(143)


def test_script_without_should_stop_is_stopped_at_the_deadline(tmp_path: Path) -> None:
    script = tmp_path / "progress.py"
    script.write_text(
        "import time\n"
        "from elastic import worker\n"
        "for step in range(1, 10**6):\n"
        "    worker.progress(step)\n"
        "    if step == 3: print('begun', flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    with launched("--standalone", "--drain=1", str(script)) as job:
        assert job.stdout.readline() == "begun\n"
        job.send_signal(signal.SIGTERM)
        _, stderr = job.end(143)
    assert "stopped without an agreed step (signal 15 (SIGTERM)" in stderr
    assert "do not call should_stop()" in stderr


def test_rank_that_fails_after_it_has_stopped_restarts_nothing(tmp_path: Path) -> None:
    options = ("--standalone", "--nproc-per-node=2", "--drain=60", "--max-restarts=1")
    with launched(*options, STUB, str(tmp_path), MANY, "1", "fail:1") as job:
        await_steps(job, 2)
        stderr = stopped(job)
    at = stops(tmp_path)
    assert list(at) == ["stopped.0.0"], "the other rank saves its state"
    step = at["stopped.0.0"]
    assert f"rank 1 exited with code 9 after it had stopped at step {step}" in stderr
    assert "asking again in the next round" not in stderr


@pytest.mark.smoke
def test_drain_by_command(tmp_path: Path) -> None:
    endpoint = free_endpoint()
    with two_nodes(endpoint, [STUB, str(tmp_path), MANY, "1"]) as job:
        job.start_nodes(2, 2)
        done = run_program(launcher_command("drain", endpoint, "--deadline=60"))
        nodes = job.finish()
    step = check_one_step(tmp_path, 4)
    assert (done.returncode, done.stdout) == (0, f"every rank stops at step {step}\n"), done.stderr
    for node in nodes:
        assert node.returncode == EXIT_STOPPED, node.stderr


def test_token_of_observers_cannot_drain(tmp_path: Path) -> None:
    from elastic import _C

    endpoint, secret, readers = free_endpoint(), tmp_path / "token", tmp_path / "readers"
    for file, text in ((secret, "correct-horse-battery-staple-0123"), (readers, "")):
        file.touch(mode=0o600)
        file.write_text(text or _C.observer_token("drain", token_file=str(secret)))
    program = [STUB, str(tmp_path), MANY, "1"]
    with two_nodes(endpoint, program, f"--token-file={secret}") as job:
        job.start_nodes(2, 2)
        refused, done = (
            launch("drain", endpoint, "--rdzv-id=drain", f"--token-file={file}")
            for file in (readers, secret)
        )
        nodes = job.finish()
    assert refused.returncode == 1
    assert "a token of observers, which only reads" in refused.stdout
    assert done.returncode == 0, done.stderr
    assert {node.returncode for node in nodes} == {EXIT_STOPPED}
    check_one_step(tmp_path, 4)


def test_ranks_at_full_speed_that_do_not_wait_for_each_other(tmp_path: Path) -> None:
    options = ("--standalone", "--nproc-per-node=2", "--drain=60")
    with launched(*options, STUB, str(tmp_path), "1000000000", "0", "free") as job:
        await_steps(job, 2)
        stopped(job)
    assert check_one_step(tmp_path, 2) > 3
