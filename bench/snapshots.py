"""Time of the training thread for a snapshot, beside a plain copy and torch.save to /dev/shm.

elastic-launch --nproc-per-node=1 bench/snapshots.py [MiB]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from elastic.torch import Snapshots

TENSORS = 64
FILE = Path("/dev/shm/elastic-bench-snapshot.pt")


class State:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"tensors": self.tensors}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        for own, saved in zip(self.tensors, state["tensors"], strict=True):
            own.copy_(saved)


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    torch.set_num_threads(1)
    state = State([torch.rand((mib << 18) // TENSORS) for _ in range(TENSORS)])
    copies = [torch.zeros_like(one) for one in state.tensors]
    snapshots = Snapshots(state=state)
    steps = iter(range(1, 1000))
    first = seconds(lambda: snapshots.save(next(steps)))
    second = seconds(lambda: snapshots.save(next(steps)))
    found: dict[str, list[float]] = {"plain copy": [], "snapshot": [], "torch.save to /dev/shm": []}
    for _ in range(7):  # in turn
        found["plain copy"].append(
            seconds(lambda: [a.copy_(b) for a, b in zip(copies, state.tensors, strict=True)])
        )
        found["snapshot"].append(seconds(lambda: snapshots.save(next(steps))))
        found["torch.save to /dev/shm"].append(seconds(lambda: torch.save(state.tensors, FILE)))
    FILE.unlink()
    print(f"{mib} MiB: first save {first:.3f} s, second {second:.3f} s")
    for name, times in found.items():
        print(f"{name:24} median {sorted(times)[3]:.3f} s, best {min(times):.3f} s")


main()
