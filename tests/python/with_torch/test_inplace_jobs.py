"""Training whose processes continue when members of the job change: real agents, real gloo."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from support.launching import Job, Process, free_endpoint, job_at, launch
from support.paths import STUBS
from support.stopping import EXIT_STOPPED
from support.waiting import eventually

pytest.importorskip("torch")

SCRIPT = STUBS / "stub_inplace_job.py"


def in_place(tmp_path: Path, nnodes: str, steps: int, *words: str) -> Job:
    options = ("--on-membership-change=inplace", "--shutdown-timeout=5", *words)
    program = [str(SCRIPT), str(tmp_path), str(steps)]
    return job_at(free_endpoint(), nnodes, program, *options)


def next_line(node: Process, word: str) -> str:
    """The next line of a node that has the word; fails at the end of its output."""
    assert node.stdout is not None
    seen = []
    for line in node.stdout:
        seen.append(line)
        if f" {word}" in line:
            return line.strip()
    raise AssertionError(("".join(seen), node.communicate()[1]))


def pid_of(line: str) -> str:
    return line.split()[0]


def losses(folder: Path) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line in (folder / "losses").read_text().splitlines():
        step, loss = line.split()
        found.setdefault(int(step), set()).add(loss)
    return found


@pytest.mark.smoke
def test_survivors_go_on_when_a_node_is_lost_and_a_new_one_gets_their_state(tmp_path: Path) -> None:
    with in_place(tmp_path, "1:2", 40) as nodes:
        result = f"--result-json={tmp_path / 'result.json'}"
        first = nodes.start(result, PAUSES_AT="20", WAITS_ALONE="1")
        second = nodes.start()
        before = {pid_of(next_line(first, "begins")), pid_of(next_line(second, "begins"))}
        next_line(first, "pauses")
        second.send_signal(signal.SIGKILL)
        third = nodes.start()
        (tmp_path / "go").touch()
        line = next_line(first, "continues")
        assert pid_of(line) in before
        assert "was lost" in line or "joined" in line, line
        born = next_line(third, "begins")
        done = nodes.finish_with(0, -signal.SIGKILL, 0)
    assert " of 2 at 2" in born, born
    sums = [re.findall(r"sum (\S+)", node.stdout) for node in (done[0], done[2])]
    assert len(sums[0]) == 1
    assert sums[0] == sums[1], "the new process has the state of the survivor"
    found = losses(tmp_path)
    assert sorted(found) == list(range(40))
    assert all(len(one) == 1 for one in found.values()), "a repeated step has the same loss"
    incidents = json.loads((tmp_path / "result.json").read_text())["incidents"]
    assert {one["in_place"] for one in incidents} == {True}
    assert [one["lost_steps"] for one in incidents] == [0] * len(incidents)
    for incident in incidents:
        ends = [incident["phases"][name] for name in ("stop", "rendezvous", "start", "first_step")]
        assert all(seconds is not None for seconds in ends), incident


def test_the_losses_are_those_of_an_undisturbed_training(tmp_path: Path) -> None:
    disturbed, calm = tmp_path / "disturbed", tmp_path / "calm"
    disturbed.mkdir()
    calm.mkdir()
    with in_place(calm, "1", 30) as nodes:
        nodes.start()
        nodes.succeed()
    with in_place(disturbed, "2", 30, "--max-restarts=1") as nodes:
        first = nodes.start("--node-rank=0")
        nodes.start("--node-rank=1", FAILS_AT="12")
        kept = pid_of(next_line(first, "begins"))
        line = next_line(first, "continues")
        nodes.succeed()
    assert pid_of(line) == kept
    assert "SIGKILL" in line, line
    assert losses(disturbed) == losses(calm)


ENDLESS = 10**7


def has_made_steps(folder: Path) -> bool:
    path = folder / "losses"
    return path.exists() and len(path.read_text().splitlines()) > 20


def test_a_growing_job_keeps_its_processes(tmp_path: Path) -> None:
    conf = "--rdzv-conf=last_call_timeout=0"
    with in_place(tmp_path, "1:2", ENDLESS, "--warm", "--drain=60", conf) as nodes:
        first = nodes.start()
        kept = pid_of(next_line(first, "begins"))
        eventually(lambda: has_made_steps(tmp_path))
        second = nodes.start()  # joins when it has imported torch
        line = next_line(first, "continues")
        born = next_line(second, "begins")
        second.send_signal(signal.SIGTERM)
        next_line(first, "continues")
        first.send_signal(signal.SIGTERM)
        done = nodes.finish_with(EXIT_STOPPED, 0)
    assert pid_of(line) == kept
    assert_grown_at_a_step(line, born, done[0].stderr)
    assert_no_step_was_repeated_or_left_out(tmp_path)


@pytest.mark.smoke
def test_a_node_whose_workers_are_prepared_joins_when_they_wait(tmp_path: Path) -> None:
    calm = tmp_path / "calm"
    calm.mkdir()
    conf = "--rdzv-conf=last_call_timeout=0"
    with in_place(tmp_path, "1:2", ENDLESS, "--drain=60", conf) as nodes:
        first = nodes.start()
        kept = pid_of(next_line(first, "begins"))
        second = nodes.start("--inplace-prepare=600")
        built = next_line(second, "is built")
        eventually(lambda: has_made_steps(tmp_path))
        (tmp_path / "go").touch()
        line = next_line(first, "continues")
        born = next_line(second, "begins")
        first.send_signal(signal.SIGTERM)
        next_line(second, "continues")
        second.send_signal(signal.SIGTERM)
        done = nodes.finish_with(0, EXIT_STOPPED)
    assert built.endswith(" is built []"), "the process comes before its rank"
    assert pid_of(line) == kept
    assert pid_of(born) == pid_of(built)
    assert_grown_at_a_step(line, born, done[0].stderr)
    assert_no_step_was_repeated_or_left_out(tmp_path)
    found = losses(tmp_path)
    with in_place(calm, "1", len(found)) as nodes:
        nodes.start()
        nodes.succeed()
    assert losses(calm) == found, "the new process had the state of the survivor"


def assert_grown_at_a_step(line: str, born: str, stderr: str) -> None:
    (step,) = re.findall(r"1 more node joins at step (\d+), which every rank has reached", stderr)
    assert f" of 2 at {step} " in line
    assert born.endswith(f" of 2 at {step}"), born


def assert_no_step_was_repeated_or_left_out(folder: Path) -> None:
    steps = [int(line.split()[0]) for line in (folder / "losses").read_text().splitlines()]
    assert steps == list(range(len(steps)))


@pytest.mark.smoke
def test_a_node_that_gets_the_signal_leaves_between_two_steps(tmp_path: Path) -> None:
    """The one with rank 0 and the store."""
    both = "--rdzv-conf=last_call_timeout=600"  # the first round has both, on a slow host too
    with in_place(tmp_path, "1:2", ENDLESS, "--drain=60", both) as nodes:
        first, second = nodes.start("--node-rank=0"), nodes.start("--node-rank=1")
        next_line(first, "begins rank 0 of 2")
        kept = pid_of(next_line(second, "begins rank 1 of 2"))
        first.send_signal(signal.SIGTERM)
        line = next_line(second, "continues")
        second.send_signal(signal.SIGTERM)
        gone, done = nodes.finish()
    assert gone.returncode == 0, gone.stderr
    assert done.returncode == EXIT_STOPPED, done.stderr
    assert pid_of(line) == kept and "rank 0 of 1" in line
    (step,) = re.findall(r"is to leave at step (\d+), which every rank has reached", done.stderr)
    assert f" at {step} " in line, "no step was interrupted"
    assert f"is to leave at step {step}, which every rank has reached" in gone.stderr
    assert_no_step_was_repeated_or_left_out(tmp_path)


def test_a_spare_takes_the_place_of_a_node_that_leaves(tmp_path: Path) -> None:
    with in_place(tmp_path, "2", ENDLESS, "--drain=60") as nodes:
        first, second = nodes.start("--node-rank=0"), nodes.start("--node-rank=1")
        kept = pid_of(next_line(first, "begins rank 0 of 2"))
        (endpoint,) = (one.partition("=")[2] for one in first.args if "--rdzv-endpoint" in one)
        name = f"{os.uname().nodename}_{second.pid}"

        def drain(node: str) -> bool:
            found = launch("drain", endpoint, "--rdzv-id=job", "--node", node)
            replies.append(found.stdout + found.stderr)
            return found.returncode == 0

        replies: list[str] = []
        assert not drain("elsewhere")
        assert not drain(name)
        third = nodes.start()
        eventually(lambda: drain(name))
        line = next_line(first, "continues")
        born = next_line(third, "begins")
        first.send_signal(signal.SIGTERM)  # no node can replace it
        nodes.finish_with(EXIT_STOPPED, 0, EXIT_STOPPED)
    assert "no node of the round is elsewhere" in replies[0]
    assert "the job needs 2 nodes, and 1 would be left" in replies[1]
    assert pid_of(line) == kept and "rank 0 of 2" in line
    (step,) = re.findall(r"is to leave at step (\d+), which every rank has reached", replies[-1])
    assert f" at {step} " in line
    assert born.endswith(f" rank 1 of 2 at {step}"), born
    assert_no_step_was_repeated_or_left_out(tmp_path)


def test_without_the_option_every_process_is_new(tmp_path: Path) -> None:
    words = ("--on-membership-change=restart", "--max-restarts=1")
    with in_place(tmp_path, "2", 20, *words) as nodes:
        first = nodes.start("--node-rank=0")
        nodes.start("--node-rank=1", FAILS_AT="5")
        begun = [pid_of(next_line(first, "begins")) for _ in range(2)]
        done = nodes.finish()
    assert len(set(begun)) == 2
    # The worker of the second round fails again, and no restart is left.
    assert all(node.returncode for node in done)
