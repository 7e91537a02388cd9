"""A training script whose rank 0 has a Python handler for SIGTERM and waits in a collective.

Usage: blocked_rank.py DIRECTORY

Rank 0 waits for rank 1, rank 1 sleeps, and rank 2 fails when rank 0 waits. DIRECTORY gets the times
(CLOCK_MONOTONIC, ns): `failed`, and `started`, when the next round's rank 0 runs its first line.
"""

from __future__ import annotations

import os
import sys
import time

BEGUN = time.monotonic_ns()


def write(name: str, text: str) -> None:
    path = os.path.join(sys.argv[1], name)
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def block() -> None:
    import signal

    import torch
    import torch.distributed as dist

    def save(*_: object) -> None:
        raise SystemExit(0)

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 0:
        signal.signal(signal.SIGTERM, save)
        write("waits", "")
        dist.recv(torch.zeros(1), src=1)
    elif rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its end would end rank 0's recv()
        time.sleep(600)
    while not os.path.exists(os.path.join(sys.argv[1], "waits")):
        time.sleep(0.01)
    time.sleep(0.3)  # rank 0 is in recv() now
    write("failed", str(time.monotonic_ns()))
    os._exit(3)


def main() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        block()
    elif os.environ["RANK"] == "0":
        write("started", str(BEGUN))


if __name__ == "__main__":
    main()
