"""A job that hangs: after some steps one rank waits for a file that no process writes.

    elastic-launch --standalone --nproc-per-node=4 --hang-timeout=5 --hang-action=restart \\
        --max-restarts=1 examples/hang.py

The other ranks wait for it in all_reduce. The launcher names the rank and the line, and restarts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from elastic import worker


def read_batch(step: int, hang_at: int, rank: int) -> torch.Tensor:
    if step == hang_at and rank == dist.get_world_size() - 1 and not worker.is_restart():
        pipe = Path(tempfile.mkdtemp()) / "batch"
        os.mkfifo(pipe)
        pipe.read_bytes()  # no process writes: this rank hangs here
    return torch.ones(8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hang-at", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    for step in range(args.steps):
        batch = read_batch(step, args.hang_at, dist.get_rank())
        dist.all_reduce(batch)
        worker.progress(step + 1)
    dist.barrier()  # all ranks end together
    if dist.get_rank() == 0:
        print(f"finished after {args.steps} steps in round {worker.round()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # As in train_digits.py: a thread of gloo may still need the interpreter.
    sys.stdout.flush()
    os._exit(0)
