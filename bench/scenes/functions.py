"""elastic_launch with functions: from the call to the first line of the function in all workers."""

from __future__ import annotations

from harness.figures import Findings, Missing
from harness.processes import answer_of
from scenes import Plan


def functions(plan: Plan) -> Findings:
    findings = Findings()
    workers = plan.amount(8, 2)
    subjects = ("elastic",) if plan.quick else ("elastic", "torch")
    case = f"{workers} functions, call to first line"
    for _ in range(plan.times(5)):
        for name in subjects:
            try:
                plan.programs.require_module(name)
            except Missing as missing:
                findings.skip(name, missing)
                continue
            answer = answer_of([*plan.programs.client("call_function.py"), name, str(workers)])
            findings.add(case, name, "ms", 1e3 * answer["seconds"])
    if findings.has(case, "elastic", "torch"):
        ratio = findings.median(case, "elastic") / findings.median(case, "torch")
        findings.at_most(f"{case}, elastic / torch", ratio, 1)
    return findings
