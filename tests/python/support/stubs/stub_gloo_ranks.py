"""All ranks of a gloo process group, forked from one process so that torch is imported once.

Each rank begins as a training script does, from its environment, or with the argument "elastic"
over elastic's client of the store. Usage: WORLD_SIZE ranks, and MASTER_ADDR and MASTER_PORT of the
store, in the environment. Exits 0 when every rank has.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def run_rank(rank: int, world_size: int) -> None:
    os.environ["RANK"] = str(rank)
    arguments = {}
    if sys.argv[1:] == ["elastic"]:
        import elastic.torch

        client = elastic.StoreClient(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        arguments = {"store": elastic.torch.Store(client), "rank": rank, "world_size": world_size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=120), **arguments)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    assert total.item() == world_size * (world_size + 1) / 2
    half = world_size // 2
    group = dist.new_group(list(range(half)))
    if rank < half:
        part = torch.tensor([float(rank)])
        dist.all_reduce(part, group=group)
        assert part.item() == sum(range(half))
    names = [None] * world_size
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {other}" for other in range(world_size)]
    dist.barrier()  # a rank that leaves earlier would disconnect one that still connects
    dist.destroy_process_group()


def fork_rank(rank: int, world_size: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run_rank(rank, world_size)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


world_size = int(os.environ["WORLD_SIZE"])
pids = [fork_rank(rank, world_size) for rank in range(world_size)]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
sys.exit(0 if codes == [0] * world_size else f"exit codes by rank: {codes}")
