"""The delay of a line from a worker's write until a reader of the launcher's console has it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence

from harness.figures import Findings, quantile
from scenes import Plan

WORKERS = 4
PAUSES = {"50 lines a second": 0.02, "2 lines a second": 0.5}
QUICK_PAUSES = {"50 lines a second": 0.02}


def console_delay(plan: Plan) -> Findings:
    findings = Findings()
    pauses = QUICK_PAUSES if plan.quick else PAUSES
    names = ("elastic",) if plan.quick else ("elastic", "torchrun")
    launchers = plan.launchers(findings, *names)
    for _ in range(plan.times(3)):
        for case, pause in pauses.items():
            count = max(1, round(plan.seconds(10.0, 0.5) / pause))
            writer = [*plan.programs.client("write_times.py"), str(count), str(pause)]
            for name, launcher in launchers.items():
                delays = _delays([*launcher, "-t1"], writer, WORKERS * count)
                for title, rank in (("median", 0.5), ("p99", 0.99)):
                    what = f"{title}, {WORKERS} workers, {case} each"
                    findings.add(what, name, "ms", quantile(delays, rank))
    for case in pauses:
        what = f"p99, {WORKERS} workers, {case} each"
        if findings.has(what, "elastic"):
            findings.at_most(f"{what}, elastic, ms", findings.median(what, "elastic"), 5)
    return findings


def _delays(launcher: Sequence[str], writer: Sequence[str], lines: int) -> list[float]:
    """Milliseconds of each line."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        options = ["--standalone", f"--nproc-per-node={WORKERS}", f"--log-dir={directory}"]
        command = [*launcher, *options, "--no-python", *writer]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            assert child.stdout is not None
            found: list[float] = []
            rest = b""
            while data := os.read(child.stdout.fileno(), 65536):
                now = time.monotonic_ns()
                *whole, rest = (rest + data).split(b"\n")
                found += [(now - int(line.rpartition(b":")[2])) / 1e6 for line in whole]
    if child.returncode != 0 or len(found) != lines:
        raise RuntimeError(f"{launcher[0]} showed {len(found)} of {lines} lines")
    return found
