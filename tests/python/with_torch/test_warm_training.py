"""Forked workers that train, and modules that compute with torch at import."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.launching import DEADLINE_S, clean_environment, launched
from support.paths import EXAMPLES
from support.warm_template import Template


def digits(*options: str, tmp_path: Path, kill: bool) -> list[str]:
    """The output of the training, with one worker killed after the first epoch."""
    pytest.importorskip("sklearn")
    environ = clean_environment()
    with launched(
        "--standalone", "--nproc-per-node=2", "--max-restarts=1", *options,
        str(EXAMPLES / "train_digits.py"), "--epochs=3", f"--checkpoint={tmp_path / 'digits.pt'}",
        f"--pid-dir={tmp_path}", f"--delay-per-step={0.2 if kill else 0}", environ=environ,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        lines = [job.stdout.readline()]
        if kill:
            os.kill(int((tmp_path / "rank1.pid").read_text()), signal.SIGKILL)
        stdout, stderr = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 0, stderr
    return [line for line in lines + stdout.splitlines(keepends=True) if "continuing" not in line]


def test_forked_training_equals_executed_training_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "warm").mkdir()
    (tmp_path / "executed").mkdir()
    executed = digits(tmp_path=tmp_path / "executed", kill=False)
    warm = digits("--warm", tmp_path=tmp_path / "warm", kill=True)
    assert sorted(set(warm)) == sorted(executed)


def test_computing_import_is_found_by_the_trial(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "computing.py").write_text(
        "import torch\nx = torch.ones(8, requires_grad=True)\nx.sum().backward()\n"
        "torch.set_num_threads(4)\ny = torch.ones(512, 512) @ torch.ones(512, 512)\n"
    )
    (tmp_path / "script.py").touch()
    with Template("computing", ["script.py"], clean_environment(), tmp_path) as template:
        message = template.receive()
        assert message.kind == "unfit"
        assert message.text.startswith("the import of computing left a thread")
