"""Trains in place, and compares the ranks with each other before each step.

Stamps, one a line in the file SOAK_DIR/stamps: what, node, pid, round, rank, world size, step,
monotonic time. "step": a complete step. "wrong": the ranks differ; the text follows. "same" or
"different": at the end, by rank 0, whether the parameters are those of an undisturbed run of as
many steps.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import elastic.torch
import torch
import torch.distributed as dist
from elastic import worker

FOLDER = Path(os.environ["SOAK_DIR"])
STEP_S = 0.005
SAMPLES, BATCH = 480, 24  # of all ranks; whole for one to four ranks
RATE = 0.05
_stamps = os.open(FOLDER / "stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

DATA = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = DATA.square().sum(dim=1, keepdim=True)


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(6, 1, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)


def update(
    model: torch.nn.Module, trained: torch.nn.Module, optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
) -> None:  # fmt: skip
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(DATA[batch]), LABELS[batch]).backward()
    optimizer.step()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def undisturbed(steps: int) -> torch.Tensor:
    torch.manual_seed(0)
    model, optimizer = build()
    batches = elastic.torch.GlobalBatches(SAMPLES, BATCH)
    for step in range(steps):
        update(model, model, optimizer, batches[step])
    return flat(model)


def main() -> None:
    # New processes get the state of the others; one that begins alone begins like the reference.
    torch.manual_seed(0)
    model, optimizer = build()
    batches = elastic.torch.GlobalBatches(SAMPLES, BATCH)
    job = elastic.torch.membership(model, optimizer, batches)
    members = worker.membership()

    def stamp(kind: str, text: str = "") -> None:
        words = (
            kind, os.environ["SOAK_NODE"], os.getpid(), members.round, job.rank, job.world_size,
            job.step, time.monotonic(), text,
        )  # fmt: skip
        os.write(_stamps, (" ".join(map(str, words)).rstrip() + "\n").encode())

    def compare(step: int) -> bool:
        """Whether the job is to end after this step, as rank 0 says."""
        is_last = job.rank == 0 and (FOLDER / "done").exists()
        own = torch.tensor(
            [members.round, job.rank, step, flat(model).sum().item(), is_last],
            dtype=torch.float64,
        )
        all_ranks = [torch.empty_like(own) for _ in range(job.world_size)]
        dist.all_gather(all_ranks, own)
        found = torch.stack(all_ranks)
        wanted = own.repeat(job.world_size, 1)
        wanted[:, 1] = torch.arange(job.world_size)
        if not torch.equal(found[:, :4], wanted[:, :4]):
            stamp("wrong", f"round, rank, step, sum: {found[:, :4].tolist()}")
        total = torch.ones(1)
        dist.all_reduce(total)
        if int(total) != int(os.environ["WORLD_SIZE"]):
            stamp("wrong", f"the sum of ones is {int(total)}")
        return bool(found[0, 4])

    with job:
        stamp("joined")
        for step in job.steps(1 << 40):
            is_last = False
            with step:
                is_last = compare(int(step))
                update(job.model, model, optimizer, batches[step])
            if job.step > step:
                stamp("step")
                if is_last:
                    break
            time.sleep(STEP_S)
        if job.rank == 0:  # the others have the same parameters
            is_same = torch.allclose(flat(model), undisturbed(job.step), rtol=1e-9, atol=1e-9)
            stamp("same" if is_same else "different")
    os._exit(0)  # a thread of gloo may still wait for the interpreter


if __name__ == "__main__":
    main()
