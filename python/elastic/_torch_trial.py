"""A trial round of one process, for a process that waits for its first one.

What it does first takes longer than later: torch loads parts of itself, and the kernel maps their
pages. The ranks that are kept would wait for that.
"""

from __future__ import annotations

from contextlib import suppress

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from elastic import _torch_transfer

_CPU = torch.device("cpu")


def try_round() -> None:
    """Forms a gloo group of this process, makes one step of a small model, and destroys it.

    The script's model, its gradients and its random numbers are not touched. An error has no
    consequence: the round itself will show it.
    """
    if dist.is_initialized():
        return
    with suppress(Exception), torch.random.fork_rng(devices=[]):
        try:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            _step()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _step() -> None:
    number = torch.zeros(1, dtype=torch.int64, device=_CPU)
    dist.all_gather([torch.empty_like(number)], number)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4, device=_CPU), torch.nn.ReLU(), torch.nn.Linear(4, 1, device=_CPU)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    _torch_transfer.broadcast(state, 0, False, _CPU, _CPU, lambda: None)
    wrapped = DistributedDataParallel(model)
    with torch.enable_grad():
        wrapped(torch.zeros(2, 4, device=_CPU)).sum().backward()
    optimizer.step()
