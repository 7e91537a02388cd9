"""Eight workers that write lines to files and to the console: cost, delay and completeness."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.figures import Findings
from scenes import Plan

WORKERS = 8
LINES_PER_SECOND = 50_000
PLAIN = "plain redirection"


def tee(plan: Plan) -> Findings:
    findings = Findings()
    writer = plan.programs.built("line_writer")
    lines = plan.amount(100_000, 2_000)
    commands = plan.launchers(findings, "elastic", "torchrun")
    for _ in range(plan.times(5)):
        for name, launcher in commands.items():
            start = _measure([*launcher, "-t1"], name, writer, 0, Findings())
            cpu = _measure([*launcher, "-t1"], name, writer, lines, findings) - start
            per_line = 1e6 * cpu / (WORKERS * lines)
            findings.add("CPU time of the launcher per line", name, "us", per_line)
        if "elastic" in commands:
            _measure([*commands["elastic"], "-r1"], PLAIN, writer, lines, findings)
    if findings.has("workers' time for all lines", "elastic", PLAIN):
        case = "workers' time for all lines"
        ratio = findings.median(case, "elastic") / findings.median(case, PLAIN)
        findings.at_most(f"{case}, elastic / {PLAIN}", ratio, 1.05)
    case = "CPU time of the launcher per line"
    if findings.has(case, "elastic", "torchrun"):
        ratio = findings.median(case, "elastic") / findings.median(case, "torchrun")
        findings.at_most(f"{case}, elastic / torchrun", ratio, 0.2)
    return findings


def _measure(
    launcher: Sequence[str], name: str, writer: str, lines: int, findings: Findings
) -> float:
    """Adds the workers' times of one launch, and returns the launcher's CPU seconds."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        results = Path(directory, "results")
        results.mkdir()
        console = Path(directory, "console")
        options = ["--standalone", f"--nproc-per-node={WORKERS}", f"--log-dir={directory}/logs"]
        worker = [writer, str(lines), str(LINES_PER_SECOND), str(results)]
        with console.open("wb") as output:
            child = subprocess.Popen(
                [*launcher, *options, "--no-python", *worker],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise RuntimeError(f"{launcher[0]} exited with {child.returncode}")
        times = [tuple(map(float, path.read_text().split())) for path in results.iterdir()]
        totals, writing, used = zip(*times, strict=True)
        findings.add("workers' time for all lines", name, "s", max(totals))
        if lines > 0:
            findings.add("time of a write", name, "us", 1e6 * sum(writing) / (WORKERS * lines))
        if name != PLAIN:
            findings.add("lost or torn lines", name, "", _missing(console, lines))
        # wait4 also counts the children that the launcher has waited for, which are the workers.
        return usage.ru_utime + usage.ru_stime - sum(used)


def _missing(console: Path, lines: int) -> float:
    """How many of the workers' lines are not on the console, whole and in order."""
    expected = [0] * WORKERS
    with console.open("rb") as shown:
        for line in shown:
            words = line.partition(b":")[2].split()
            if len(words) < 2 or not words[0].isdigit() or not words[1].isdigit():
                continue
            rank, number = int(words[0]), int(words[1])
            if rank < WORKERS and number == expected[rank]:
                expected[rank] += 1
    return float(sum(lines - number for number in expected))
