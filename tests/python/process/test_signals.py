"""Signals to the launcher: workers receive them, have a grace period, and none remains."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from support.launching import DEADLINE_S, Process, assert_all_ended, clean_environment, launched
from support.waiting import eventually, let_echoes_pass, stall_for_test

# Prints its pid, then runs without end; any signal ends it.
# A shell may report on stderr that its "sleep" was stopped; the launcher did not print that.
QUIET = "exec 2>/dev/null; "
READY = f"{QUIET}echo ready $$; while :; do sleep 0.05; done"
# Ignores the signal and prints a word when it arrives.
STUBBORN = f"{QUIET}trap 'echo signalled' TERM INT; echo ready $$; while :; do sleep 0.05; done"


def wait_ready(process: subprocess.Popen[str], workers: int = 1) -> list[int]:
    return [int(process.stdout.readline().split()[1]) for _ in range(workers)]


def state_of(pid: int) -> str:
    """The letter of proc(5): R running, S sleeping, T stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def sh(program: str, *options: str) -> list[str]:
    return [*options, "--no-python", "/bin/sh", "-c", program]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_a_signal_stops_the_job_with_its_code(number: signal.Signals, code: int) -> None:
    with launched(*sh(READY, "--nproc-per-node=2")) as process:
        wait_ready(process, 2)
        process.send_signal(number)
        _, stderr = process.end(code)
    received, result = stderr.splitlines()
    assert re.fullmatch(
        f"elastic-launch: received {number.name}; waiting for the workers until "
        r"\d\d:\d\d:\d\d, another signal shortens the wait",
        received,
    )
    assert f"stopped by signal {int(number)} ({number.name})" in result


def test_ctrl_c_prints_no_traceback() -> None:
    with launched(*sh(READY), start_new_session=True) as process:
        wait_ready(process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.end(130)
    assert "Traceback" not in stderr


def test_ctrl_z_stops_the_launcher_while_its_workers_continue(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    program = f"echo ready $$; while :; do echo step >> {progress}; sleep 0.02; done"
    # A process group of its own in this session, as a shell makes it: SIGTSTP has no effect on the
    # group of a session leader.
    with launched(*sh(program), preexec_fn=os.setpgrp) as process:
        [worker] = wait_ready(process)
        eventually(progress.exists)
        os.killpg(process.pid, signal.SIGTSTP)
        eventually(lambda: state_of(process.pid) == "T")
        steps = progress.stat().st_size
        eventually(lambda: progress.stat().st_size > steps + 50)
        assert state_of(worker) != "T"
        os.killpg(process.pid, signal.SIGCONT)
        eventually(lambda: state_of(process.pid) != "T")
        process.terminate()
        _, stderr = process.end(143)
    assert "evicted" not in stderr


@pytest.mark.smoke
def test_workers_may_finish_their_work_after_the_signal(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    program = (
        f"trap 'echo state > {saved}; exit 0' TERM; echo ready $$; while :; do sleep 0.05; done"
    )
    with launched(*sh(program)) as process:
        wait_ready(process)
        process.terminate()
    assert process.returncode == 143
    assert saved.read_text() == "state\n"


def test_worker_that_does_not_stop_is_killed_after_the_grace() -> None:
    with launched(*sh(STUBBORN, "--shutdown-timeout=0.3")) as process:
        wait_ready(process)
        process.terminate()
        _, stderr = process.end(143)
    assert "killed by SIGKILL, since they did not stop in time: rank 0\n" in stderr


@pytest.mark.parametrize("repetitions", [1, 2])
def test_a_second_signal_shortens_the_grace_and_a_third_kills(repetitions: int) -> None:
    with launched(*sh(STUBBORN, "--shutdown-timeout=86400")) as process:
        wait_ready(process)
        process.terminate()
        assert process.stdout.readline() == "signalled\n"
        begun = time.monotonic()
        let_echoes_pass()
        process.send_signal(signal.SIGINT)
        if repetitions > 1:
            process.send_signal(signal.SIGQUIT)  # two pending signals come in either order
        assert "shortens the wait" in process.stderr.readline()
        line = process.stderr.readline()
        assert ") again; the workers have 5 s at most" in line
        assert "SIGINT" in line or repetitions > 1
        if repetitions > 1:
            assert "again; killing the workers" in process.stderr.readline()
        _, stderr = process.end(143)
    assert "killed by SIGKILL" in stderr
    if repetitions == 1:
        assert time.monotonic() - begun >= 4.5


def test_a_second_signal_kills_when_the_grace_is_short_already() -> None:
    with launched(*sh(STUBBORN, "--shutdown-timeout=4")) as process:
        wait_ready(process)
        process.send_signal(signal.SIGINT)
        assert "shortens the wait" in process.stderr.readline()
        let_echoes_pass()
        process.send_signal(signal.SIGTERM)
        _, stderr = process.end(130)
    assert "again; killing the workers" in stderr


@pytest.mark.parametrize("echo", [signal.SIGTERM, signal.SIGHUP])
def test_an_echo_of_the_first_signal_leaves_the_grace(echo: signal.Signals) -> None:
    on_term = "echo saving; read line; exit 0"
    program = f"{QUIET}trap '{on_term}' TERM; echo ready $$; while :; do sleep 0.05; done"
    with launched(*sh(program, "--shutdown-timeout=3")) as process:  # a second request would kill
        wait_ready(process)
        process.terminate()
        assert process.stdout.readline() == "saving\n"
        process.send_signal(echo)
        process.stdin.close()  # the save ends
        _, stderr = process.end(143)
    assert "again" not in stderr
    assert "SIGKILL" not in stderr


@pytest.mark.parametrize(("scope", "on_term"), [("group", "wait; exit 0"), ("leader", "exit 0")])
def test_stop_scope_decides_whether_children_are_signalled(
    tmp_path: Path, scope: str, on_term: str
) -> None:
    marker = tmp_path / "marker"
    child = f"trap 'echo > {marker}; exit' TERM; echo ready $$; while :; do sleep 0.05; done"
    program = f"trap '{on_term}' TERM; sh -c \"{child}\" & while :; do sleep 0.05; done"
    with launched(*sh(program, f"--stop-scope={scope}")) as process:
        wait_ready(process)
        process.terminate()
    assert marker.exists() == (scope == "group")


HELPED = """
import os, signal, sys
ends, saves = os.pipe(), os.pipe()
if os.fork() == 0:  # as a worker of a DataLoader
    signal.signal(signal.SIGTERM, lambda *_: (print("helper stopped", flush=True), os._exit(0)))
    os.write(saves[1], b"x")
    os.read(ends[0], 1)
    print("helper asked", flush=True)
    os.write(saves[1], b"x")
    while True:
        signal.pause()
def save(*_):
    os.write(ends[1], b"x")
    os.read(saves[0], 1)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
os.read(saves[0], 1)
print("ready", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_a_rank_that_saves_when_it_is_stopped_still_has_its_helpers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HELPED)
    with launched("--standalone", str(script)) as process:
        wait_ready(process)
        process.terminate()
        stdout, _ = process.end(143)
    assert stdout.splitlines()[:2] == ["helper asked", "saved"]


CONTINUED = """
import os, signal
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    begun = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, lambda *_: (print("helper stopped", flush=True), os._exit(0)))
        os.write(begun[1], b"x")
        while True:
            signal.pause()
    signal.signal(signal.SIGCONT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.read(begun[0], 1)
print("ready", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_helpers_are_stopped_when_their_rank_has_ended_that_handles_sigcont_too(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CONTINUED)
    words = ("--standalone", "--nproc-per-node=2", "--shutdown-timeout=3600", str(script))
    with launched(*words) as process:
        workers = wait_ready(process, 2)
        process.terminate()
        assert process.stdout.readline() == "helper stopped\n"
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        process.end(143)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGUSR1, 128 + signal.SIGUSR1), (signal.SIGUSR2, -signal.SIGUSR2)]
)
def test_other_signals_can_be_chosen_and_others_end_the_launcher(
    number: signal.Signals, code: int
) -> None:
    with launched(*sh(READY, "--signals-to-handle=SIGUSR1")) as process:
        wait_ready(process)
        process.send_signal(number)
    assert process.returncode == code


def test_an_ignored_hangup_stays_ignored() -> None:
    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    program = "echo ready $$; read line; exit 0"
    with launched(*sh(program), preexec_fn=ignore_hangup, start_new_session=True) as process:
        [worker] = wait_ready(process)
        os.killpg(process.pid, signal.SIGHUP)
        os.kill(worker, signal.SIGHUP)
        process.communicate("go on\n", timeout=DEADLINE_S)
    assert process.returncode == 0


def test_signals_that_the_parent_has_blocked_stop_the_job() -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    with launched(*sh(READY), preexec_fn=block) as process:
        wait_ready(process)
        process.terminate()
        process.end(143)


@pytest.mark.smoke
def test_nothing_survives_a_killed_launcher() -> None:
    environ = clean_environment()
    with launched(*sh(STUBBORN, "--nproc-per-node=2"), environ=environ) as process:
        wait_ready(process, 2)
        process.kill()
        process.wait(DEADLINE_S)
        assert_all_ended(environ, deadline_s=60.0)


# ---- Signals at moments that nothing marks: these tests vary the moment by stalls.

MOMENTS = int(os.environ.get("ELASTIC_SIGNAL_MOMENTS", "6"))  # of each kind


def signal_after(seconds: float, process: Process, number: signal.Signals) -> tuple[str, str]:
    """What the launcher printed that received a signal after so long, if it still ran then.

    While the interpreter starts, before any line of ours, Ctrl-C is an exception of Python's own;
    where that strikes in a callback, Python reports and forgets it, and one has to press again.
    """
    stall_for_test(seconds)
    process.send_signal(number)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "Exception ignored in" in line:
            process.send_signal(number)
    stdout, _ = process.communicate(timeout=DEADLINE_S)
    return stdout, "".join(lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_the_first_milliseconds_leaves_no_process(number: signal.Signals) -> None:
    for step in range(MOMENTS - 2):
        with launched(*sh(STUBBORN, "--shutdown-timeout=0")) as process:
            _, stderr = signal_after(0.2 * step / (MOMENTS - 2), process, number)
        # Until our first line runs, Python prints a traceback for Ctrl-C and exits with 1.
        if number == signal.SIGINT and "KeyboardInterrupt" in stderr:
            assert not re.search(r"main\.py.*, in run$", stderr, re.MULTILINE)
        else:
            assert process.returncode in (-number, 128 + number)
            assert "Traceback" not in stderr


def test_signal_at_any_moment_gives_the_jobs_code_or_its_own() -> None:
    """The moments cover the whole run of a local job, and the time after it."""
    random = Random(20)
    begun = time.monotonic()
    with launched(*sh(f"{QUIET}sleep 0.1")) as process:
        process.wait(DEADLINE_S)
    life = time.monotonic() - begun
    for _ in range(MOMENTS):
        moment = random.uniform(0, 1.2 * life)
        with launched(*sh(f"{QUIET}echo started; sleep 0.1")) as process:
            stdout, stderr = signal_after(moment, process, signal.SIGTERM)
        # Before the launcher handles signals, a signal ends it; it has no worker then.
        allowed = (0, 143) if stdout else (0, 143, -signal.SIGTERM)
        assert process.returncode in allowed, (moment, life, stdout, stderr)
        assert "Traceback" not in stderr


def test_signal_after_the_workers_success_ends_nothing_or_all() -> None:
    """The last milliseconds of the launcher, in which the interpreter could be torn down."""
    for step in range(MOMENTS):
        with launched(*sh(f"{QUIET}echo started")) as process:
            process.stdout.read()  # until the worker has ended
            signal_after(0.03 * step / MOMENTS, process, signal.SIGTERM)
        assert process.returncode in (0, 143)
