"""A store barrier and gloo's init_process_group, through torch's client, at 2 to 16 ranks."""

from __future__ import annotations

from harness.figures import Findings, Missing
from harness.processes import ask, running
from scenes import Plan
from scenes.servers import servers


def process_group(plan: Plan) -> Findings:
    findings = Findings()
    with servers(plan, ("elastic", "torch"), findings) as subjects:
        try:
            plan.programs.require_module("torch")
        except Missing as missing:
            findings.skip("torch's client", missing)
            return findings
        with running(plan.programs.client("ranks.py")) as parent:
            for repeat in range(plan.times(20)):
                for ranks in (2, 4) if plan.quick else (2, 4, 8, 16):
                    for subject in subjects:
                        name = f"{ranks}/{repeat}"
                        answer = ask(parent, port=subject.port, ranks=ranks, name=name)
                        barrier, init = 1e3 * answer["barrier"], 1e3 * answer["init"]
                        findings.add(f"barrier, {ranks} ranks", subject.name, "ms", barrier)
                        findings.add(f"init, {ranks} ranks", subject.name, "ms", init)
    return findings
