"""A worker whose handler of SIGTERM cannot run, because it waits in a collective, is replaced."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from harness.figures import Findings
from harness.processes import ANSWER_SECONDS
from scenes import Plan

GRACE_SECONDS = 1.0


def failure_grace(plan: Plan) -> Findings:
    """torchrun is not measured: its workers have 30 s here, which no option changes."""
    findings = Findings()
    plan.programs.require_module("torch")
    case = f"a peer fails, --failure-grace={GRACE_SECONDS:g}: until the new worker's first line"
    for _ in range(plan.times(5)):
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            options = ["--standalone", "--nproc-per-node=3", "--max-restarts=1"]
            options += ["--restart-backoff=0", f"--failure-grace={GRACE_SECONDS:g}"]
            script = plan.programs.client("blocked_rank.py")[1]
            command = [*plan.programs.launcher("elastic"), *options, script, directory]
            subprocess.run(command, check=True, capture_output=True, timeout=ANSWER_SECONDS)
            times = [int(Path(directory, name).read_text()) for name in ("failed", "started")]
        findings.add(case, "elastic", "s", (times[1] - times[0]) / 1e9)
    findings.at_most(f"{case}, s", findings.median(case, "elastic"), GRACE_SECONDS + 0.2)
    return findings
