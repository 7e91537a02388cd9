"""What the hook of a plain start costs a worker, and how soon a plain start names a late rank."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from harness.figures import Findings
from harness.processes import ANSWER_SECONDS, answer_of, launched, stamps, timed
from scenes import Plan

WITH, WITHOUT = "elastic", "elastic --no-auto-progress"
START_LIMIT_MS, STEP_LIMIT, LINE_LIMIT_S = 12.0, 1.01, 15.0
START = "a worker that does nothing, exec of the launcher to exit"
TIMES = {"step": "a step of DDP, 2 ranks", "reduce": "an all-reduce of 16 numbers, 2 ranks"}
LINE = "2 ranks, one sleeps, from there to the line that names it"


def plain_start(plan: Plan) -> Findings:
    findings = Findings()
    plan.programs.require_module("torch")
    launcher = [*plan.programs.launcher("elastic"), "--standalone"]
    commands = {WITH: launcher, WITHOUT: [*launcher, "--no-auto-progress"]}
    script = plan.programs.client("step_times.py")[1]
    counts = [str(plan.amount(500, 20)), str(plan.amount(1000, 100))]
    with tempfile.NamedTemporaryFile(suffix=".py") as empty:
        for number in range(plan.times(20)):
            # Whoever is first in a pair, its files are the colder ones.
            for name in sorted(commands, reverse=number % 2 == 1):
                seconds, _ = timed([*commands[name], empty.name])
                findings.add(START, name, "ms", 1e3 * seconds)
                of_ranks = answer_of([*commands[name], "--nproc-per-node=2", script, *counts])
                for key, case in TIMES.items():
                    findings.add(case, name, "ms", 1e3 * of_ranks[key])
    for _ in range(plan.amount(3, 1)):
        findings.add(LINE, WITH, "s", _time_of_line([*launcher, "--nproc-per-node=2", script]))
    extra = findings.median(START, WITH) - findings.median(START, WITHOUT)
    findings.at_most(f"{START}: what the hook adds, ms", extra, START_LIMIT_MS)
    for case in TIMES.values():
        ratio = findings.median_ratio(case, WITH, WITHOUT)
        findings.at_most(f"{case}: with the hook / without", ratio, STEP_LIMIT)
    findings.at_most(f"{LINE}, s", findings.median(LINE, WITH), LINE_LIMIT_S)
    return findings


def _time_of_line(command: list[str]) -> float:
    """Seconds from the last progress of a rank that sleeps to the line that names it."""
    with stamps() as pipe, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "log"
        variables = {"BENCH_STAMPS": pipe.path}
        with log.open("wb") as stderr, launched([*command, "sleep"], variables, stderr) as child:
            ((_, begun_ns),) = pipe.next("sleep", 1)
            deadline = time.monotonic() + ANSWER_SECONDS
            while "rank 1 has not entered" not in log.read_text(errors="replace"):
                if child.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no line about rank 1: {log.read_text()[-2000:]}")
                time.sleep(0.01)
            return (time.monotonic_ns() - begun_ns) / 1e9
