"""The fault campaign runs, one scene: a worker is killed, and training continues."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import namespaces
import pytest

from support.launching import run_program
from support.paths import ROOT

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.alone,
    pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not()),
]


def test_a_scene_writes_its_result(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result, drawn = tmp_path / "result.json", tmp_path / "faults.svg"
    command = [
        *(sys.executable, "-m", "bench.faults", "--launcher=elastic-launch"),
        *("--scene=worker-killed", f"--json={result}", f"--picture={drawn}"),
        f"--logs={tmp_path / 'logs'}",
    ]
    done = run_program(command, cwd=ROOT, check=True, timeout=600, grace_s=60.0)
    (run,) = json.loads(result.read_text())["results"]
    assert (run["outcome"], run["culprit"], run["orphans"]) == ("ok", "right", 0), done.stderr
    assert run["first_step"] > 0
    assert "worker-killed" in drawn.read_text()
