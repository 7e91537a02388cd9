"""Process groups of workers that keep their processes over a change of rounds."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from support.channels import MemberWorker

# The third rank does not take part in the second sum, and never will: the others are blocked in it,
# and the timeout of the group is an hour away.
SCRIPT = """
import datetime, os, sys
import torch
import torch.distributed as dist
from elastic import worker

job = worker.membership()

def sum_of_ones():
    value = torch.ones(1)
    dist.all_reduce(value)
    print(int(value), flush=True)

def form():
    with job.sockets():
        dist.init_process_group(
            "gloo", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]), timeout=datetime.timedelta(hours=1),
        )

form()
sum_of_ones()
if os.environ["RANK"] == "2":
    sys.stdin.read()
worker.progress(1)
try:
    sum_of_ones()
except RuntimeError:
    print("cut")  # of this rank, or of a peer: then its own follows
dist.destroy_process_group()
job.next_round()
form()
sum_of_ones()
dist.destroy_process_group()
"""


def test_a_cut_ends_a_blocked_collective_and_the_next_round_works(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                MemberWorker(
                    script, RANK=str(rank), WORLD_SIZE="3", STORE=f"{tmp_path}/0",
                    GLOO_SOCKET_IFNAME="lo",
                )
            )
            for rank in range(3)
        ]  # fmt: skip
        assert [worker.next_line() for worker in workers] == ["3"] * 3
        for worker in workers[:2]:
            worker.wait_for(b"p")
            worker.cut(0)
        for worker in workers[:2]:
            worker.wait_for(b"x")
        for rank, worker in enumerate(workers[:2]):
            worker.give(1, RANK=rank, WORLD_SIZE=2, STORE=f"{tmp_path}/1")
        assert [worker.output() for worker in workers[:2]] == ["cut\n2\n"] * 2
