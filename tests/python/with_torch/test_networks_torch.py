"""gloo between hosts with two networks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest

from support.launching import Job
from support.networks import hosts_of_two_networks


@pytest.fixture
def hosts() -> Iterator[list[namespaces.Host]]:
    with hosts_of_two_networks() as hosts:
        yield hosts


SUM = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.barrier()
print(os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"], int(total.item()), flush=True)
dist.destroy_process_group()
os._exit(0)  # a thread of gloo may still need the interpreter
"""


def test_ranks_of_two_hosts_meet_in_the_network_that_was_given(
    hosts: list[namespaces.Host], tmp_path: Path
) -> None:
    """The rendezvous is in the first network; gloo finds the second one by the variables alone."""
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    endpoint = f"--rdzv-endpoint={hosts[1].address}:29400"
    options = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", endpoint]
    with Job(options, [str(script)]) as nodes:
        nodes.start("--subnet=10.78.0.0/24", "--node-rank=0", on=hosts[0].command)
        nodes.start("--iface=data0", "--node-rank=1", on=hosts[1].command)
        done = nodes.succeed()
    assert [node.stdout for node in done] == ["10.78.0.1 data0 2\n"] * 2
