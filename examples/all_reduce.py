"""The smallest distributed job: every worker contributes its rank and all receive the sum.

elastic-launch --standalone --nproc-per-node=4 examples/all_reduce.py
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    use_gpu = torch.cuda.device_count() > local_rank
    device = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if use_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    total = torch.tensor([float(rank)], device=device)
    dist.all_reduce(total)
    expected = world_size * (world_size - 1) / 2
    if total.item() != expected:
        raise RuntimeError(f"the sum of all ranks is {total.item()}, not {expected}")
    dist.barrier()
    # One write, so that lines of workers that share a terminal do not mix.
    print(f"rank {rank} of {world_size}: sum {total.item():g}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # As in train_digits.py: a thread of gloo may still need the interpreter.
    sys.stdout.flush()
    os._exit(0)
