"""The benchmarks start and write their samples. All other scenes: nightly/test_bench_scenes.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.benchmarks import OTHERS, RUN, WITHOUT_BUILD, check_scene
from support.launching import run_program


@pytest.mark.parametrize("scene", WITHOUT_BUILD)
def test_scene_runs_and_writes_its_samples(scene: str, tmp_path: Path) -> None:
    check_scene(scene, tmp_path, "--no-build")


def test_unknown_scene_is_an_error_that_lists_the_scenes() -> None:
    done = run_program([*RUN, "nonsense"])
    assert done.returncode == 2
    assert "unknown scene: nonsense" in done.stderr
    assert all(scene in done.stderr for scene in (*WITHOUT_BUILD, *OTHERS))
