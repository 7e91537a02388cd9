"""Runs the demonstrations of examples/: training goes on whatever happens to its nodes."""

from __future__ import annotations

import subprocess
import sys

import namespaces
import pytest

from support.launching import DEADLINE_S, clean_environment
from support.paths import EXAMPLES

CI_SCENE = "kill-the-host"  # the others run in the nightly


def watch(*words: str, program: str = "watch_it_recover.py") -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *words],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_scene(scene: str) -> None:
    """The scene between hosts, which are network namespaces."""
    pytest.importorskip("sklearn")
    if why_not := namespaces.why_not():
        pytest.skip(why_not)
    output = watch(scene)
    assert "all nodes are on localhost" not in output
    assert "recovered: accuracy" in output
