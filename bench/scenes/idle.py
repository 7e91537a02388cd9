"""The cost of an agent while its workers run: CPU time and wake-ups of all its processes."""

from __future__ import annotations

import time
from contextlib import ExitStack

from harness import proc
from harness.figures import Findings, Missing
from harness.processes import launched, stamps
from scenes import Plan

WORKERS = 8
SETTLE_SECONDS = 2.0


def idle(plan: Plan) -> Findings:
    """The subjects idle at the same time, in the same windows."""
    findings = Findings()
    worker = plan.programs.built("stamp_worker")
    window = plan.seconds(60.0, 5.0)
    with ExitStack() as stack:
        jobs: dict[str, list[int]] = {}
        for name in ("elastic", "torchrun"):
            try:
                launcher = plan.programs.launcher(name)
            except Missing as missing:
                findings.skip(name, missing)
                continue
            pipe = stack.enter_context(stamps())
            options = ["--standalone", f"--nproc-per-node={WORKERS}", "--no-python", worker]
            variables = {"BENCH_STAMPS": pipe.path}
            agent = stack.enter_context(launched([*launcher, *options], variables))
            workers = {pid for pid, _ in pipe.next("start", WORKERS)}
            jobs[name] = [agent.pid, *(set(proc.descendants(agent.pid)) - workers)]
        time.sleep(SETTLE_SECONDS)
        for _ in range(plan.times(3)):
            before = {name: proc.scheduled(pids) for name, pids in jobs.items()}
            time.sleep(window)
            for name, pids in jobs.items():
                spent = proc.scheduled(pids) - before[name]
                findings.add("CPU", name, "% of a core", 100 * spent.cpu_ns / (window * 1e9))
                findings.add("wake-ups per second", name, "1/s", spent.timeslices / window)
    if findings.has("CPU", "elastic"):
        findings.at_most("CPU of agent and guardian, %", findings.median("CPU", "elastic"), 0.02)
        wakes = findings.median("wake-ups per second", "elastic")
        findings.at_most("wake-ups of agent and guardian per second", wakes, 0.1)
    return findings
