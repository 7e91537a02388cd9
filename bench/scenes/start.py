"""The time from exec to exit of a launcher with a trivial worker, and its memory."""

from __future__ import annotations

import sys

from harness import proc
from harness.figures import Findings, Missing
from harness.processes import launched, stamps, timed
from scenes import Plan

WORKERS = 8
CHECK_MS = 500
CHECKED = "elastic --node-check"
CHECK = "the check alone"
MIB = 1024 * 1024


def start(plan: Plan) -> Findings:
    findings = Findings()
    commands = {"python -c pass": [sys.executable, "-c", "pass"]}
    for name in ("elastic", "torchrun"):
        try:
            launcher = plan.programs.launcher(name)
            commands[name] = [*launcher, "--standalone", "--no-python", "/bin/true"]
            if name == "elastic":
                check = f"sleep {CHECK_MS / 1e3}"
                options = ["--standalone", f"--node-check={check}", "--no-python"]
                commands[CHECKED] = [*launcher, *options, "/bin/true"]
                commands[CHECK] = ["/bin/sh", "-c", check]
        except Missing as missing:
            findings.skip(name, missing)
    for command in commands.values():
        timed(command)  # fills the page cache and writes the bytecode
    for _ in range(plan.times(20)):
        for name, command in commands.items():
            seconds, cpu_seconds = timed(command)
            findings.add("exec to exit", name, "ms", 1e3 * seconds)
            findings.add("CPU time", name, "ms", 1e3 * cpu_seconds)
    if findings.has("exec to exit", "elastic", CHECKED):
        findings.at_most(
            f"what a check of {CHECK_MS} ms adds to the start, ms",
            findings.median("exec to exit", CHECKED) - findings.median("exec to exit", "elastic"),
            findings.median("exec to exit", CHECK),
        )
    if findings.has("exec to exit", "elastic", "torchrun"):
        findings.at_most(
            "exec to exit, elastic / torchrun",
            findings.median("exec to exit", "elastic")
            / findings.median("exec to exit", "torchrun"),
            1 / 20,
        )
    return findings


def launcher_memory(plan: Plan) -> Findings:
    """All processes of a launcher except its stub workers; includes elastic's guardian."""
    findings = Findings()
    for _ in range(plan.times(5)):
        for name in ("elastic", "torchrun"):
            try:
                _weigh(plan, name, findings)
            except Missing as missing:
                findings.skip(name, missing)
    if findings.has("peak (sum of VmHWM)", "elastic"):
        findings.at_most(
            "peak of launcher and guardian (sum of VmHWM), MiB",
            findings.median("peak (sum of VmHWM)", "elastic"),
            30,
        )
    return findings


def _weigh(plan: Plan, name: str, findings: Findings) -> None:
    worker = plan.programs.built("stamp_worker")
    options = ["--standalone", f"--nproc-per-node={WORKERS}", "--no-python", worker]
    with stamps() as pipe:
        variables = {"BENCH_STAMPS": pipe.path}
        with launched([*plan.programs.launcher(name), *options], variables) as agent:
            workers = {pid for pid, _ in pipe.next("start", WORKERS)}
            pids = [agent.pid, *(set(proc.descendants(agent.pid)) - workers)]
            peak = sum(map(proc.peak_resident_bytes, pids))
            findings.add("peak (sum of VmHWM)", name, "MiB", peak / MIB)
            now = sum(map(proc.proportional_bytes, pids))
            findings.add("at rest (sum of PSS)", name, "MiB", now / MIB)
