"""Runs the demonstrations of examples/: training continues after each loss of a node."""

from __future__ import annotations

import sys

import namespaces
import pytest

from support.launching import DEADLINE_S, run_program
from support.paths import EXAMPLES

CI_SCENE = "kill-the-host"  # the others run in the nightly


def watch(*words: str, program: str = "watch_it_recover.py") -> str:
    command = [sys.executable, EXAMPLES / program, *words]
    return run_program(command, check=True, timeout=3 * DEADLINE_S, grace_s=60.0).stdout


def check_scene(scene: str) -> None:
    """The scene between hosts, which are network namespaces."""
    pytest.importorskip("sklearn")
    if why_not := namespaces.why_not():
        pytest.skip(why_not)
    output = watch(scene)
    assert "all nodes are on localhost" not in output
    assert "recovered: accuracy" in output
