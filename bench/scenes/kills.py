"""An agent or its guardian is killed at a random moment: the time until no process is left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
import uuid
from pathlib import Path

from harness import proc
from harness.figures import Findings
from scenes import Plan

LIMIT_SECONDS = 1.0
START_SECONDS = 60.0
MARK = "BENCH_MARK"
# The workers ignore SIGTERM, one of them fails all the time, and each has a child in its process
# group and another one in a session of its own.
WORKER = (
    "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & sleep 1000 & "
    "[ $RANK = 1 ] && sleep 0.2 && exit 3; wait"
)


def kills(plan: Plan) -> Findings:
    """torchrun is not measured: its workers outlive the agent."""
    findings = Findings()
    launcher = plan.programs.launcher("elastic")
    chance = random.Random(1)
    left = 0
    for _ in range(plan.times(50)):
        for victim in ("agent", "guardian"):
            moment = chance.uniform(0.05, 0.5 if plan.quick else 1.5)
            seconds = _kill(launcher, victim, moment)
            if seconds is None:
                left += 1
            else:
                findings.add(f"SIGKILL of the {victim}", "elastic", "ms", 1e3 * seconds)
    findings.at_most(f"trials with processes {LIMIT_SECONDS:g} s after the kill", left, 0)
    return findings


def _kill(launcher: list[str], victim: str, moment: float) -> float | None:
    """Seconds from the kill until no process is left; None: some were left at the limit."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    options = ["--nproc-per-node=2", "--max-restarts=100000", "--restart-backoff=0"]
    options += ["--failure-grace=0", "--no-python", "/bin/sh", "-c", WORKER]
    agent = subprocess.Popen(
        [*launcher, *options],
        env=os.environ | dict([mark.split("=")]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    guardian = _guardian(agent.pid)  # exists soon after the start
    time.sleep(moment)
    killed = time.monotonic()
    os.kill(agent.pid if victim == "agent" else guardian, signal.SIGKILL)
    agent.wait()  # an agent without guardian reports that, and ends
    while (left := _marked(mark)) and time.monotonic() < killed + LIMIT_SECONDS:
        time.sleep(0.001)
    seconds = time.monotonic() - killed
    for pid in left:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)
    return None if left else seconds


def _guardian(agent: int) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # one of the processes has ended
            for pid in proc.descendants(agent):
                if b"elastic-guardian" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        time.sleep(0.001)
    os.kill(agent, signal.SIGKILL)
    raise RuntimeError("the agent has no guardian")


def _marked(mark: str) -> list[int]:
    """The processes that inherited the variable."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:  # it has ended, or is another user's
            continue
    return found
