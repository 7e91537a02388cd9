"""Trains a model that FSDP2 shards over the ranks, and continues from memory after a killed worker.

elastic-launch --standalone --nproc-per-node=2 --max-restarts=3 examples/fsdp_snapshots.py

Each rank keeps its own part of the parameters and of the optimizer's state (docs/snapshots.md).
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from elastic.torch import Snapshots
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    torch.manual_seed(rank)  # the samples of this rank

    snapshots = Snapshots(model=model, optimizer=optimizer)
    step = snapshots.restore() or 0  # a long job would load its checkpoint
    if rank == 0:
        print(f"begins at step {step}: pid {os.getpid()}", flush=True)
    while step < steps:
        inputs = torch.rand(32, 64)
        loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        snapshots.save(step)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    # As in train_digits.py: a thread of gloo may still need the interpreter.
    sys.stdout.flush()
    os._exit(0)
