"""Runs scenes of the benchmarks with small amounts. The results are not checked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.launching import run_program
from support.paths import ROOT

RUN = [sys.executable, str(ROOT / "bench" / "run.py")]
WITHOUT_BUILD = ("kills", "console-delay", "functions")  # they need no program of the build
OTHERS = (
    "start",
    "launcher-memory",
    "restart",
    "idle",
    "plain-start",
    "collectives",
    "failure-grace",
    "tee",
    "nodes",
    "succession",
    "sessions",
    "stalls",
    "observer",
    "handlers",
    "store-throughput",
    "store-client",
    "store-wake",
    "store-memory",
    "store-crowd",
    "process-group",
    "trainers",
    "warm",
    "worker-calls",
)


def check_scene(scene: str, directory: Path, *options: str) -> None:
    result = directory / "result.json"
    command = [*RUN, scene, "--quick", "--repeats=1", f"--json={result}", *options]
    done = run_program(command, check=True, timeout=1800, grace_s=60.0)
    assert f"### {scene}" in done.stdout
    found = json.loads(result.read_text())["scenes"][scene]
    if not found["rows"]:
        pytest.skip(f"no subject could be measured: {found['skipped']}")
    assert all(row["samples"] for row in found["rows"])
