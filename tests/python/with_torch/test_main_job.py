"""The main job: real torch trains on real digits, loses a worker, and reaches its accuracy."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from support.launching import DEADLINE_S, launch, launched

pytest.importorskip("torch")

from support.paths import EXAMPLES

TOLERANCE = 0.02


def accuracy_of(output: str) -> float:
    found = re.search(r"^finished: accuracy ([0-9.]+)", output, re.MULTILINE)
    assert found, output
    return float(found[1])


def test_training_survives_a_killed_worker(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    train = str(EXAMPLES / "train_digits.py")
    calm = launch("--standalone", "--nproc-per-node=2", train)
    assert calm.returncode == 0, calm.stderr
    undisturbed = accuracy_of(calm.stdout)
    assert undisturbed > 0.95

    # Slow enough that the kill comes before the end.
    words = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", train]
    words += ["--delay-per-step=0.05"]
    words += ["--checkpoint", str(tmp_path / "digits.pt"), "--pid-dir", str(tmp_path)]
    output = ""
    with launched(*words) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output += line
            if line.startswith("epoch 4 ") and "continuing" not in output:
                os.kill(int((tmp_path / "rank1.pid").read_text()), signal.SIGKILL)
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stderr
    assert "killed by signal 9 (SIGKILL); restarting, 0 of 1 restarts left" in stderr
    assert re.search(r"^continuing with epoch [5-9]", output, re.MULTILINE)
    assert abs(accuracy_of(output) - undisturbed) <= TOLERANCE
