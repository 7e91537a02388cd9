"""Elastic's rendezvous handler under torchrun."""

from __future__ import annotations

import functools
import sys

import pytest

from support.launching import free_endpoint, run_program
from support.paths import EXAMPLES
from support.waiting import together

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
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=elastic", f"--rdzv-endpoint={free_endpoint()}", "--rdzv-id=stock"),
        *("--local-addr=127.0.0.1", str(EXAMPLES / "all_reduce.py")),
    ]
    nodes = together(*[functools.partial(run_program, command, check=True)] * 2)
    printed = sorted(line for node in nodes for line in node.stdout.splitlines())
    assert printed == [f"rank {rank} of 2: sum 1" for rank in range(2)]
