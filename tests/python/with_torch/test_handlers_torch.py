"""Plugged-in handlers with torch's workers, and elastic's handler under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from elastic import StoreServer

from support.launching import (
    DEADLINE_S,
    Job,
    assert_all_ended,
    clean_environment,
    free_endpoint,
    run_program,
)
from support.paths import EXAMPLES
from support.plug_ins import options, plug_in


def test_a_plugged_in_handler_drives_the_command(tmp_path: Path) -> None:
    path = plug_in(tmp_path)
    with (
        StoreServer("127.0.0.1", 0) as server,
        Job(options(server, "--nproc-per-node=1"), [str(EXAMPLES / "all_reduce.py")]) as nodes,
    ):
        for _ in range(2):
            nodes.start(PYTHONPATH=path)
        done = nodes.succeed()
    printed = sorted(line for node in done for line in node.stdout.splitlines())
    assert printed == [f"rank {rank} of 2: sum 1" for rank in range(2)]


REGISTERED = """
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as known
assert 'elastic' in known._registry
"""

# test_stock_torchrun_meets_at_elastics_rendezvous imports torch's module first.
ELASTIC_TORCH_FIRST = """
import sys, elastic
assert "elastic.rendezvous" not in sys.modules
print(elastic.rendezvous.RendezvousParameters.__name__, elastic.torch.__name__)
"""
ELASTIC_RUN_FIRST = """
import sys
import elastic.run
from elastic.timer import debug_info_logging
from elastic.utils import data, distributed
assert "torch" not in sys.modules
sampler = data.ElasticDistributedSampler(range(10), num_replicas=2, rank=1, start_index=4)
print(len(list(sampler)), distributed.create_c10d_store.__name__)
"""


@pytest.mark.parametrize(
    ("first", "printed"),
    [
        (ELASTIC_TORCH_FIRST, "RendezvousParameters elastic.torch\n"),
        (ELASTIC_RUN_FIRST, "3 create_c10d_store\n"),
    ],
)
def test_torch_is_imported_when_it_is_used_and_has_the_handler_then(
    first: str, printed: str
) -> None:
    done = run_program([sys.executable, "-W", "error::UserWarning", "-c", first + REGISTERED])
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_stock_torchrun_meets_at_elastics_rendezvous() -> None:
    endpoint = free_endpoint()
    environ = clean_environment()
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
             "--rdzv-backend=elastic", f"--rdzv-endpoint={endpoint}", "--rdzv-id=stock",
             "--local-addr=127.0.0.1", str(EXAMPLES / "all_reduce.py")],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    results = [node.communicate(timeout=DEADLINE_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], results
    printed = sorted(line for out, _ in results for line in out.splitlines())
    assert printed == [f"rank {rank} of 2: sum 1" for rank in range(2)]
    assert_all_ended(environ)
