"""An agent at an endpoint where torch's own store listens."""

from __future__ import annotations

import torch.distributed as dist

from support.launching import launch


def test_torchs_store_is_not_used_as_a_coordinator() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    endpoint = f"127.0.0.1:{store.port}"
    words = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={endpoint}")
    done = launch(*words, "--no-python", "true")
    assert done.returncode == 76, done.stderr
    assert f"{endpoint} is a plain TCPStore, not a coordinator" in done.stderr
    assert "tcpstore" in done.stderr  # the backend that can use it
    assert store.num_keys() == 0  # and no key was left
