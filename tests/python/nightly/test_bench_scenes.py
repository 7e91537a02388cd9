"""Every scene of the benchmarks runs, with small amounts. The results are not checked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.benchmarks import OTHERS, check_scene
from support.paths import ROOT

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("bench"), pytest.mark.alone]


@pytest.fixture(scope="module")
def build() -> Path:
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("cmake and ninja, which build the benchmark programs, are not installed")
    for step in (["--preset", "release"], ["--build", "--preset", "release", "--target", "bench"]):
        subprocess.run(["cmake", *step], cwd=ROOT, check=True)
    return ROOT / "build" / "release"


@pytest.mark.parametrize("scene", OTHERS)
def test_scene_runs_and_writes_its_samples(scene: str, build: Path, tmp_path: Path) -> None:
    check_scene(scene, tmp_path, f"--build-dir={build}")
