"""Trainers of other packages with --warm: after a failure their modules are there at the start.

Lightning and transformers are not part of the test extra: CONTRIBUTING.md has the command.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.launching import launch
from support.paths import ROOT

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("kind", ["transformers", "lightning", "fsdp"])
def test_modules_of_a_trainer_are_preloaded_after_a_round(kind: str, tmp_path: Path) -> None:
    if kind != "fsdp" and importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    client = str(ROOT / "bench" / "clients" / "trainers.py")
    options = ("--standalone", "--warm", "--nproc-per-node=2", "--max-restarts=20")
    done = launch(
        *options, "--restart-backoff=0", client, kind, str(tmp_path), "--until-preloaded",
        timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 0 preloaded True" in done.stdout and "rank 1 preloaded True" in done.stdout
    assert "killed by signal 9" in done.stderr or kind == "fsdp", done.stderr  # torch's own
