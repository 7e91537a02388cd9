"""An agent with running workers sleeps: it does not poll, and no timer wakes it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.launching import children, launched
from support.waiting import stall_for_test

WORKERS = 8
WINDOW_S = 3.0
WINDOWS_MAX = 20  # on a loaded machine the start may not be complete in the first windows


def times_scheduled(pids: list[int]) -> int:
    """How often threads of the processes were scheduled (schedstat's third number)."""
    return sum(
        int((task / "schedstat").read_text().split()[2])
        for pid in pids
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


@pytest.mark.alone
def test_idle_agent_and_guardian_are_never_scheduled() -> None:
    # The workers print that they run, and then sleep until they are stopped.
    sleeper = "echo up; exec sleep 600"
    with launched(f"--nproc-per-node={WORKERS}", "--no-python", "sh", "-c", sleeper) as process:
        for _ in range(WORKERS):
            assert process.stdout.readline() == "up\n"
        guardians = children(process.pid)
        assert len(guardians) == 1
        pids = [process.pid, *guardians]
        woken = []
        for _ in range(WINDOWS_MAX):
            before = times_scheduled(pids)
            stall_for_test(WINDOW_S)
            assert process.poll() is None
            woken.append(times_scheduled(pids) - before)
            if woken[-1] == 0:
                break
        assert woken[-1] == 0, f"wake-ups in windows of {WINDOW_S} s: {woken}"
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
