"""The worker of scene "snapshot-save": what each way to save costs the training thread.

save_state.py MIB REPEATS prints a line for each: its name, a tab, seconds. All take turns.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from elastic.torch import Snapshots

TENSORS = 64


class State:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"tensors": self.tensors}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        for own, saved in zip(self.tensors, state["tensors"], strict=True):
            own.copy_(saved)


def main() -> None:
    mib, repeats = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # which DCP needs
    state = State([torch.rand((mib << 18) // TENSORS) for _ in range(TENSORS)])
    copies = [torch.zeros_like(one) for one in state.tensors]
    snapshots = Snapshots(state=state)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))

    def timed(name: str, call: Callable[[], object]) -> object:
        begin = time.perf_counter()
        found = call()
        print(f"{name}\t{time.perf_counter() - begin}", flush=True)
        return found

    for step in range(2 + repeats):
        name = "snapshot" if step >= 2 else "first snapshots"
        kept = timed(name, functools.partial(snapshots.save, step))
        assert kept, "the snapshot was not kept"
        if step < 2:
            continue
        timed("copy", lambda: [a.copy_(b) for a, b in zip(copies, state.tensors, strict=True)])
        timed("torch.save", lambda: torch.save(state.tensors, folder / "state.pt"))
        (folder / "state.pt").unlink()
        saving = timed(
            "DCP", lambda: dcp.async_save(state.state_dict(), checkpoint_id=folder / "dcp")
        )
        saving.result()  # type: ignore[attr-defined]
        shutil.rmtree(folder / "dcp")
    shutil.rmtree(folder)
    dist.destroy_process_group()


main()
