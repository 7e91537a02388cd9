"""The cost of capturing the stderr of workers, compared with plain inheritance."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

from harness.figures import Findings
from harness.processes import timed
from scenes import Plan

SUBJECTS = (("captured", ()), ("inherited", ("--no-stderr-capture",)))
LINES_PER_SECOND = 1000


def output(plan: Plan) -> Findings:
    findings = Findings()
    launcher = [*plan.programs.launcher("elastic"), "--standalone"]
    lines = plan.amount(3000, 200)
    writer = plan.programs.client("write_lines.py")
    for _ in range(plan.times(20)):
        for name, options in SUBJECTS:
            seconds, _ = timed([*launcher, *options, "--no-python", "/bin/true"])
            findings.add("exec to exit", name, "ms", 1e3 * seconds)
    for _ in range(plan.times(5)):
        for name, options in SUBJECTS:
            command = [*launcher, *options, "--no-python", *writer]
            _write_lines([*command, str(lines), str(LINES_PER_SECOND)], lines, name, findings)
    for figure, unit, limit in (("exec to exit", "ms", 1.0), ("write of a line, p50", "us", 5.0)):
        captured, inherited = (findings.median(figure, name) for name, _ in SUBJECTS)
        findings.at_most(f"{figure}, captured - inherited, {unit}", captured - inherited, limit)
    return findings


def _write_lines(command: list[str], lines: int, name: str, findings: Findings) -> None:
    """Adds the times of one launch. All children that end during it are the launcher's."""
    with tempfile.TemporaryFile() as console:
        before, begin = os.times(), time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=console, check=True)
        after, seconds = os.times(), time.perf_counter() - begin
    result = json.loads(done.stdout)
    findings.add("write of a line, p50", name, "us", result["p50_us"])
    findings.add("write of a line, p99", name, "us", result["p99_us"])
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    findings.add("CPU time of launcher and worker per line", name, "us", 1e6 * used / lines)
    findings.add("lines per second", name, "1/s", lines / seconds)
