"""Real torch workers on several nodes; the host of their store changes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.launching import Job, free_endpoint
from support.paths import STUBS

pytest.importorskip("torch")

WORKER = str(STUBS / "stub_gloo_node.py")


@pytest.mark.parametrize("disable", ["0", "1"], ids=["agent's store", "rank 0's store"])
def test_process_group_forms_after_a_restart_and_a_move_of_rank_0(
    tmp_path: Path, disable: str
) -> None:
    go = tmp_path / "go"
    options = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={free_endpoint()}"]
    options += ["--rdzv-id=job", "--max-restarts=1", "--shutdown-timeout=5"]
    variable = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": disable}
    with Job(options, [WORKER, str(go)]) as nodes:
        stays = nodes.start("--node-rank=1", "--rdzv-conf=is_host=true", **variable)
        leaves = nodes.start("--node-rank=0", "--rdzv-conf=is_host=false", **variable)
        assert stays.stdout is not None
        assert stays.stdout.readline() == "sum 2 in round 0\n"
        assert stays.stdout.readline() == "sum 2 in round 1\n"
        leaves.send_signal(signal.SIGTERM)
        assert stays.stdout.readline() == "sum 1 in round 2\n"
        go.touch()
        done = nodes.finish()
    assert [node.returncode for node in done] == [0, 143], [node.stderr for node in done]
