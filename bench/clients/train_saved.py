"""A worker of scene "snapshots": DDP with 100 MiB of state, saved after each step.

`train_saved.py` keeps snapshots, `train_saved.py --dcp DIRECTORY` checkpoints of torch (DCP) in
the directory. Stamps its first step. Both write behind the training thread. `train_saved.py
--nothing` keeps nothing and begins anew: what a restart of this script takes at least.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from stamping import stamp
from torch import nn

WIDTH, LAYERS = 1024, 12  # 48 MiB of parameters, and as much of momentum
PAUSE_S = 0.25
NEWEST = "newest"


class Checkpoints:
    """The newest one of DCP; its predecessor stays until it is complete."""

    def __init__(self, directory: Path, **stateful: Any) -> None:
        self.directory, self.stateful = directory, stateful
        self.pending: Any = None
        # A thread saves, beside the collectives of DDP.
        self.group = dist.new_group()

    def restore(self) -> int:
        newest = self.directory / NEWEST
        if not newest.exists():
            return 0
        step = newest.read_text()
        state = {name: one.state_dict() for name, one in self.stateful.items()}
        dcp.load(state, checkpoint_id=self.directory / step, process_group=self.group)
        for name, one in self.stateful.items():
            one.load_state_dict(state[name])
        return int(step)

    def save(self, step: int) -> None:
        if self.pending is not None:
            before, future = self.pending
            future.result()
            if dist.get_rank() == 0:
                (self.directory / "partial").write_text(str(before))
                (self.directory / "partial").rename(self.directory / NEWEST)
        state = {name: one.state_dict() for name, one in self.stateful.items()}
        where = self.directory / str(step)
        future = dcp.async_save(state, checkpoint_id=where, process_group=self.group)
        self.pending = (step, future)


class Nothing:
    def restore(self) -> None:
        pass

    def save(self, step: int) -> None:
        pass


def main() -> None:
    stamp("loaded")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
    if sys.argv[1:2] == ["--dcp"]:
        # The state of an optimizer that has made no step has no tensors to load into.
        optimizer.zero_grad()
        network(torch.zeros(1, WIDTH)).sum().mul(0).backward()
        optimizer.step()
        saves: Any = Checkpoints(Path(sys.argv[2]), model=network, optimizer=optimizer)
    elif sys.argv[1:2] == ["--nothing"]:
        saves = Nothing()
    else:
        from elastic.torch import Snapshots

        saves = Snapshots(model=network, optimizer=optimizer)
    step = saves.restore() or 0
    model = nn.parallel.DistributedDataParallel(network)
    first = True
    while True:
        optimizer.zero_grad()
        model(torch.rand(8, WIDTH)).square().mean().backward()
        optimizer.step()
        step += 1
        if first:
            stamp("step")
            first = False
        saves.save(step)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
