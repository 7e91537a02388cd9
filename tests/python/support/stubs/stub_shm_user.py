"""A rank that uses /dev/shm and does not tidy up: stub_shm_user.py KIND WAY.

WAY says how it ends: by itself, or by what the test does after "ready".
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any

_kept: list[Any] = []


def use_memory() -> None:
    """Segments and a named semaphore, and a child that has them open too."""
    context = multiprocessing.get_context("spawn")
    _kept.extend(SharedMemory(create=True, size=4096) for _ in range(2))
    _kept.append(context.Semaphore())
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1e6,), daemon=True)
    child.start()


def use_manager() -> None:
    manager = multiprocessing.get_context("fork").Manager()
    _kept.extend((manager, manager.dict(), manager.Lock()))


def use_joblib() -> None:
    """Processes of loky with arrays that they share by files."""
    import joblib
    import numpy

    array = numpy.zeros(1 << 18)
    run = joblib.Parallel(n_jobs=2, max_nbytes=1 << 10, temp_folder="/dev/shm")
    run(joblib.delayed(len)(array) for _ in range(2))
    _kept.extend((run, array))


def use_loaders() -> None:
    import torch
    from torch.utils.data import DataLoader

    torch.multiprocessing.set_sharing_strategy("file_system")
    data = [torch.ones(100) for _ in range(10_000)]
    batches = iter(DataLoader(data, batch_size=8, num_workers=2))  # type: ignore[arg-type]
    _kept.extend((batches, [next(batches) for _ in range(3)]))


KINDS = {
    "memory": use_memory,
    "manager": use_manager,
    "joblib": use_joblib,
    "loaders": use_loaders,
}


def await_others() -> None:
    """A rank that is killed between the creation of a segment and its registration leaves it."""
    environ = os.environ
    folder, round_number = environ["STUB_READY_FOLDER"], environ["TORCHELASTIC_RESTART_COUNT"]
    for rank in (environ["RANK"], *map(str, range(int(environ["WORLD_SIZE"])))):
        path = os.path.join(folder, f"{round_number}.{rank}")
        if rank == environ["RANK"]:
            open(path, "w").close()
        while not os.path.exists(path):
            time.sleep(0.01)


def run(kind: str, way: str) -> None:
    KINDS[kind]()
    await_others()
    assert os.listdir("/dev/shm") or kind == "manager"
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if way == "raise":
        raise ValueError("bad sample")
    if way == "_exit":
        os._exit(3)
    if way == "kill" or (way == "restart" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    if way in ("stop", "agent"):
        time.sleep(1e6)


if __name__ == "__main__":
    run(*sys.argv[1:])
