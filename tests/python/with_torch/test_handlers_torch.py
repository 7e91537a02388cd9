"""Plugged-in handlers with torch's workers, and elastic's handler under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from elastic import StoreServer

from support.launching import DEADLINE_S, Job, assert_all_ended, clean_environment, free_endpoint
from support.paths import EXAMPLES
from support.plug_ins import options, plug_in


def test_a_plugged_in_handler_drives_the_command(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = plug_in(tmp_path)
    with (
        StoreServer("127.0.0.1", 0) as server,
        Job(options(server), [str(EXAMPLES / "all_reduce.py")]) as nodes,
    ):
        for _ in range(2):
            nodes.start(PYTHONPATH=path)
        done = nodes.finish()
    assert [node.returncode for node in done] == [0, 0], [node.stderr for node in done]
    printed = sorted(line for node in done for line in node.stdout.splitlines())
    assert printed == [f"rank {rank} of 4: sum 6" for rank in range(4)]


def test_the_torch_handler_is_registered_whichever_module_is_imported_first() -> None:
    pytest.importorskip("torch")
    for first in ("elastic.torch", "torch.distributed.elastic.rendezvous", "elastic.run"):
        code = (
            f"import {first}\nfrom torch.distributed.elastic.rendezvous import "
            "rendezvous_handler_registry as known\nassert 'elastic' in known._registry"
        )
        subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


def test_stock_torchrun_meets_at_elastics_rendezvous() -> None:
    pytest.importorskip("torch")
    endpoint = free_endpoint()
    environ = clean_environment()
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2",
             "--rdzv-backend=elastic", f"--rdzv-endpoint={endpoint}", "--rdzv-id=stock",
             "--local-addr=127.0.0.1", str(EXAMPLES / "all_reduce.py")],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    results = [node.communicate(timeout=DEADLINE_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], results
    printed = sorted(line for out, _ in results for line in out.splitlines())
    assert printed == [f"rank {rank} of 4: sum 6" for rank in range(4)]
    assert_all_ended(environ)
