"""The example of a job that is preempted and resumed."""

from __future__ import annotations

import sys

import pytest

from support.launching import run_program
from support.paths import ROOT


@pytest.mark.timeout(300)
def test_example_is_preempted_and_resumed() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    command = [sys.executable, ROOT / "examples/preempt_and_resume.py", "--epochs=2"]
    done = run_program(command, check=True, timeout=280, grace_s=60.0)
    assert "stopped in epoch 1 after batch" in done.stdout
    assert "continuing with epoch 1, batch" in done.stdout
