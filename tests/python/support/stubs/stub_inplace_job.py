"""Trains with elastic.torch.membership: STUB FOLDER STEPS; variables set what happens at a step.

Every rank computes the same full batch, so that the losses do not depend on the number of ranks.
A pause lasts until the file "go" exists.
"""

import os
import sys
import time
from pathlib import Path

import elastic.torch
import torch
import without_compiler  # noqa: F401
from elastic import worker

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
go = folder / "go"
torch.manual_seed(0 if os.environ.get("ELASTIC_ROUND") == "0" else 1 + os.getpid())
inputs = torch.linspace(-1, 1, 64).reshape(16, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def say(*words):
    print(os.getpid(), *words, flush=True)


def changed(change):
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    assert int(ones) == job.world_size
    if change is None:
        say("begins", "rank", job.rank, "of", job.world_size, "at", job.step)
    else:
        say("continues", "rank", job.rank, "of", job.world_size, "at", job.step, change)


job = elastic.torch.membership(model, optimizer)
if worker.membership().awaits_round:
    say("is built", [name for name in ("RANK", "MASTER_ADDR") if name in os.environ])
    while not go.exists():
        time.sleep(0.01)
with job:
    job.on_change(changed)
    for step in job.steps(steps):
        with step:
            loss = job.model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if os.environ.get("FAILS_AT") == str(int(step)):
                os.kill(os.getpid(), 9)
            optimizer.step()
            if job.rank == 0:
                with open(folder / "losses", "a") as file:
                    file.write(f"{int(step)} {loss.item():.6f}\n")
            if step == int(os.environ.get("PAUSES_AT", -1)):
                say("pauses")
                while not go.exists():
                    time.sleep(0.01)
            if "WAITS_ALONE" in os.environ:
                while job.world_size == 1 and not worker.membership().is_over():
                    time.sleep(0.01)
total = torch.cat([one.detach().flatten() for one in model.state_dict().values()]).double().sum()
say(f"sum {total:.9f}")
