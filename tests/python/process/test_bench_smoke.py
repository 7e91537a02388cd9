"""Every scene of the benchmarks runs, with small amounts. The results are not checked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

RUN = [sys.executable, str(ROOT / "bench" / "run.py")]
SCENES = (
    "start",
    "launcher-memory",
    "restart",
    "idle",
    "tee",
    "console-delay",
    "functions",
    "failure-grace",
    "kills",
    "nodes",
    "succession",
    "sessions",
    "observer",
    "handlers",
    "store-throughput",
    "store-client",
    "store-wake",
    "store-memory",
    "process-group",
    "warm",
    "worker-calls",
)


@pytest.fixture(scope="module")
def build() -> Path:
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("cmake and ninja, which build the benchmark programs, are not installed")
    for step in (["--preset", "release"], ["--build", "--preset", "release", "--target", "bench"]):
        subprocess.run(["cmake", *step], cwd=ROOT, check=True)
    return ROOT / "build" / "release"


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_runs_and_writes_its_samples(scene: str, build: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [*RUN, scene, "--quick", "--repeats=1", f"--build-dir={build}", f"--json={result}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"### {scene}" in done.stdout
    found = json.loads(result.read_text())["scenes"][scene]
    if not found["rows"]:
        pytest.skip(f"no subject could be measured: {found['skipped']}")
    assert all(row["samples"] for row in found["rows"])


def test_unknown_scene_is_an_error_that_lists_the_scenes() -> None:
    done = subprocess.run([*RUN, "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown scene: nonsense" in done.stderr
    assert all(scene in done.stderr for scene in SCENES)
