"""Real torch workers on several nodes; the host of their store changes."""

from __future__ import annotations

import signal
from pathlib import Path

from support.launching import free_endpoint, job_at
from support.paths import STUBS

WORKER = str(STUBS / "stub_gloo_node.py")


def test_process_group_forms_over_rank_0s_store_after_a_restart_and_a_move_of_rank_0(
    tmp_path: Path,
) -> None:
    """Over the agent's store it forms again in test_training.py."""
    go = tmp_path / "go"
    options = ("--max-restarts=1", "--shutdown-timeout=5")
    variable = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with job_at(free_endpoint(), "1:2", [WORKER, str(go)], *options) as nodes:
        stays = nodes.start("--node-rank=1", "--rdzv-conf=is_host=true", **variable)
        leaves = nodes.start("--node-rank=0", "--rdzv-conf=is_host=false", **variable)
        assert stays.stdout.readline() == "sum 2 in round 0\n"
        assert stays.stdout.readline() == "sum 2 in round 1\n"
        leaves.send_signal(signal.SIGTERM)
        assert stays.stdout.readline() == "sum 1 in round 2\n"
        go.touch()
        nodes.finish_with(0, 143)
