"""One agent, eight workers, one of them killed: the time until eight new ones run.

With node checks, too, which run beside the restart.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack

from harness.figures import Findings
from harness.processes import Stamps, launched, read_line, running, stamps
from scenes import Plan

WORKERS = 8
FLOOR = "bare fork+exec"
CHECKED = "elastic --node-check"


def restart(plan: Plan) -> Findings:
    findings = Findings()
    worker = plan.programs.built("stamp_worker")
    # torch polls its workers every 0.1 s; the kills are spread over that period.
    pauses = random.Random(1)
    with ExitStack() as stack:
        jobs: dict[str, tuple[Stamps, list[int]]] = {}
        commands = plan.launchers(findings, "elastic", "torchrun")
        if "elastic" in commands:
            commands[CHECKED] = [*commands["elastic"], "--node-check=true"]
        for name, launcher in commands.items():
            pipe = stack.enter_context(stamps())
            options = ["--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=1000"]
            command = [*launcher, *options, "--no-python", worker]
            # Restarts follow one another at once.
            environment = {"BENCH_STAMPS": pipe.path, "PET_RESTART_BACKOFF": "0"}
            stack.enter_context(launched(command, environment))
            jobs[name] = pipe, [pid for pid, _ in pipe.next("start", WORKERS)]
        for _ in range(plan.times(20)):
            findings.add(f"{WORKERS} workers run", FLOOR, "ms", _fork_exec(plan, worker))
            for name, (pipe, pids) in jobs.items():
                time.sleep(pauses.uniform(0.1, 0.3))
                took, pids[:] = _kill_one(pipe, pauses.choice(pids))
                findings.add(f"{WORKERS} workers run", name, "ms", took)
    case = f"{WORKERS} workers run"
    if findings.has(case, "elastic"):
        findings.at_most(
            "killed to all running, elastic - bare fork+exec, ms",
            findings.median(case, "elastic") - findings.median(case, FLOOR),
            15,
        )
    return findings


def _kill_one(pipe: Stamps, victim: int) -> tuple[float, list[int]]:
    """Milliseconds from the kill to the last new worker's first instruction, and the new pids."""
    begun_ns = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    started = pipe.next("start", WORKERS)
    return (max(at_ns for _, at_ns in started) - begun_ns) / 1e6, [pid for pid, _ in started]


def _fork_exec(plan: Plan, worker: str) -> float:
    with stamps() as pipe:
        os.environ["BENCH_STAMPS"] = pipe.path
        command = [plan.programs.built("fork_exec"), "--worker", worker, "--count", str(WORKERS)]
        with running(command) as floor:
            begun_ns = int(read_line(floor))
            started = pipe.next("start", WORKERS)
        del os.environ["BENCH_STAMPS"]
    return (max(at_ns for _, at_ns in started) - begun_ns) / 1e6
