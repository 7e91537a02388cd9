"""The calls that a training script makes at every step, and the import of their module."""

from __future__ import annotations

import json
import sys

from harness.figures import Findings, Missing
from harness.processes import answer_of, timed
from scenes import Plan


def worker_calls(plan: Plan) -> Findings:
    findings = Findings()
    launcher = [*plan.programs.launcher("elastic"), "--standalone", "--no-python"]
    count = str(plan.amount(1_000_000, 10_000))
    programs = {"C": [plan.programs.built("worker_steps"), count]}
    programs["Python"] = [*plan.programs.client("report_steps.py"), count]
    for _ in range(plan.times(10)):
        for name, program in programs.items():
            times = answer_of([*launcher, *program])
            if not times["has_channel"]:
                raise Missing("the workers have no channel")
            for call in ("nothing", "progress", "stop"):
                if call in times:
                    findings.add(f"{call}, {name}", "elastic", "ns", times[call])
        for subject, code in (("import elastic.worker", "import elastic.worker"), ("pass", "pass")):
            seconds, _ = timed([sys.executable, "-S", "-c", _with_path(code)])
            findings.add("an interpreter", subject, "ms", 1e3 * seconds)
    empty = findings.median("nothing, Python", "elastic")
    extra = findings.median("progress, Python", "elastic") - empty
    findings.at_most("progress from Python - an empty call, ns", extra, 150)
    findings.at_most("progress from C, ns", findings.median("progress, C", "elastic"), 10)
    module, bare = (
        findings.median("an interpreter", name) for name in ("import elastic.worker", "pass")
    )
    findings.at_most("import of elastic.worker, ms", module - bare, 5)
    return findings


def _with_path(code: str) -> str:
    """Without the site module, whose time is not that of the import."""
    return f"import sys; sys.path[:0] = {json.dumps([p for p in sys.path if p])}; {code}"
