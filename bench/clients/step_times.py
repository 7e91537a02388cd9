"""A worker of scene "plain-start": prints what a step of DDP and a small all-reduce take it.

    step_times.py STEPS REDUCES
    step_times.py sleep

Rank 0 prints one object of JSON, the medians in seconds. With "sleep" rank 1 stamps "sleep" after
three steps and enters no further one: the others wait for it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from stamping import stamp


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    _time_of(step, 3)
    if sys.argv[1] == "sleep":
        while dist.get_rank() == 1:
            stamp("sleep")
            time.sleep(3600)
        step()
        return
    _time_of(step, 20)
    steps, reduces = (int(text) for text in sys.argv[1:])
    seconds = {"step": _time_of(step, steps)}
    values = torch.ones(16)
    seconds["reduce"] = _time_of(lambda: dist.all_reduce(values), reduces)
    if dist.get_rank() == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


def _time_of(call: Callable[[], object], count: int) -> float:
    """The median."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
