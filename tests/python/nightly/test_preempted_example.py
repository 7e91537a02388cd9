"""The example of a job that is preempted and resumed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.launching import clean_environment
from support.paths import ROOT


@pytest.mark.timeout(300)
def test_example_is_preempted_and_resumed() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    example = ROOT / "examples/preempt_and_resume.py"
    done = subprocess.run(
        [sys.executable, str(example), "--epochs=2"],
        env=clean_environment(), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped in epoch 1 after batch" in done.stdout
    assert "continuing with epoch 1, batch" in done.stdout
