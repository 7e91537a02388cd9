"""Hugging Face's Trainer, Lightning, and FSDP2 with DCP: how soon they train again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.figures import Findings, Missing
from harness.processes import launched, stamps
from scenes import Plan
from scenes.warm import restarts

SUBJECTS = ("elastic --warm", "elastic", "torchrun")
TRAINERS = {
    "transformers": ("Hugging Face's Trainer", "transformers", 1300.0),
    "lightning": ("Lightning", "lightning", 1300.0),
    "fsdp": ("FSDP2 and DCP", "torch", 800.0),
}
CASE = "{}, 2 workers, one killed, to the first step of both"


def trainers(plan: Plan) -> Findings:
    findings = Findings()
    for kind, (title, module, limit_ms) in TRAINERS.items():
        case = CASE.format(title)
        for name in SUBJECTS[: plan.amount(len(SUBJECTS), 1)]:
            try:
                plan.programs.require_module(module)
                command = plan.programs.launcher(name.split()[0]) + name.split()[1:]
            except Missing as missing:
                findings.skip(f"{name}: {case}", missing)
                continue
            _measure(findings, plan, command, name, kind, case)
        if findings.has(case, SUBJECTS[0]):
            findings.at_most(f"{case}, ms", findings.median(case, SUBJECTS[0]), limit_ms)
    return findings


def _measure(
    findings: Findings, plan: Plan, command: list[str], name: str, kind: str, case: str
) -> None:
    with stamps() as pipe, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        saved = Path(folder) / "saved"
        saved.mkdir()
        _, *client = plan.programs.client("trainers.py")
        options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1000"]
        variables = {"BENCH_STAMPS": pipe.path, "PET_RESTART_BACKOFF": "0"}
        with launched([*command, *options, *client, kind, str(saved)], variables):
            # The template imports what the first round has imported.
            restarts(findings, plan.times(7), pipe, name, 2, {"step": case}, pause=20)
