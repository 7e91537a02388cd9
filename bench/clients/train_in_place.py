"""A worker of scene "in-place": stamps the first all-reduce and the first step of each round.

Stamp "pause" has, instead of a time, the ns between the last step of a process before a change of
the members and its first one after it.
"""

from __future__ import annotations

import time

import elastic.torch
import torch
import torch.distributed as dist
from stamping import stamp

STEP_S = 0.005


def main() -> None:
    torch.set_num_threads(1)  # a machine may have fewer cores than ranks, whose steps would be slow
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64)
    job = elastic.torch.membership(model, optimizer)
    last_ns = 0
    is_first = True

    def formed(_change: elastic.torch.Change | None) -> None:
        nonlocal is_first
        dist.all_reduce(torch.ones(1))
        stamp("reduced")
        is_first = True

    job.on_change(formed)
    with job:
        for step in job.steps(1_000_000):
            with step:
                loss = job.model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                now_ns = time.monotonic_ns()
                if is_first:
                    if last_ns > 0:
                        stamp("pause", now_ns - last_ns)
                    stamp("step", now_ns)
                is_first, last_ns = False, now_ns
                time.sleep(STEP_S)


if __name__ == "__main__":
    main()
