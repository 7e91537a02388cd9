"""Ranks of gloo that train for SECONDS, of which one pauses again and again: stub SECONDS LONGEST

The pause, of at most LONGEST seconds, is an evaluation, a checkpoint, a batch that a child process
makes, or a compilation by another program. All others wait for the rank in a collective operation.
It works for a tenth of the time, as a part of a core is enough to be seen.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

SHARE = 0.1
STEPS = 20
TURN_S = 0.5


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        used = time.thread_time()
        while time.thread_time() - used < SHARE * TURN_S:
            pass
        time.sleep((1 - SHARE) * TURN_S)


def write(seconds: float) -> None:
    end = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(os.urandom(1 << 18))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(TURN_S)


def make_batch(seconds: float, end: Connection) -> None:
    compute(seconds)
    end.send("batch")


def load(seconds: float) -> None:
    here, there = multiprocessing.Pipe()
    loader = multiprocessing.get_context("fork").Process(target=make_batch, args=(seconds, there))
    loader.start()
    here.recv()
    loader.join()


def compile_elsewhere(seconds: float) -> None:
    subprocess.run([sys.executable, __file__, "compile", str(seconds)], check=True)


KINDS = {
    "evaluation": compute,
    "checkpoint": write,
    "loading": load,
    "compilation": compile_elsewhere,
}


def main() -> None:
    end, longest = time.monotonic() + float(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    weights = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    common = random.Random(1)
    pauses: dict[str, list[float]] = {kind: [] for kind in KINDS}
    is_over = torch.zeros(1)
    while not is_over.item():
        for _ in range(STEPS):
            weights.sum().backward()
            dist.all_reduce(weights.grad)
            optimizer.step()
        kind, pauser = common.choice(list(KINDS)), common.randrange(size)
        seconds = common.uniform(0, longest)
        pauses[kind].append(round(seconds))
        if rank == pauser:
            KINDS[kind](seconds)
        is_over.fill_(rank == 0 and time.monotonic() > end)
        dist.all_reduce(is_over)
    if rank == 0:
        sys.stdout.write(f"{sum(map(len, pauses.values()))} pauses: {pauses}\n")


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compute(float(sys.argv[2]))
    else:
        main()
