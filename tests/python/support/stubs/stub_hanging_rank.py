"""A gloo rank of a job in which one rank hangs: stub_hanging_rank.py KIND RANK DIRECTORY

KIND: sleep, loop, stop (SIGSTOP), file, lock. The other ranks wait for it in all_reduce.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from elastic import worker

FIRST_STEPS = 3


def hang(kind: str, directory: Path) -> None:
    if kind == "sleep":
        time.sleep(1000)  # a stub hangs by sleeping
    elif kind == "loop":
        while True:
            pass
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "file":
        pipe = directory / "pipe"
        os.mkfifo(pipe)
        pipe.read_bytes()
    elif kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def main() -> None:
    kind, rank, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo")
    for step in range(1, 1000):
        if step > FIRST_STEPS:
            if worker.is_restart():
                os._exit(0)  # the end of an interpreter with torch may take longer than the limit
            if dist.get_rank() == rank:
                hang(kind, directory)
        dist.all_reduce(torch.ones(4))
        worker.progress(step)


if __name__ == "__main__":
    main()
