"""Trains with elastic.torch.membership; before each step the test sends a command on stdin.

Commands: go, make the step; die, exit; raise, raise an error that no change has caused; before,
within, between, after: raise the error of a collective before, in and after the update of the
parameters, and after the update of the learning rate. Variables: CALLBACK_FAILS, the first callback
ends with such an error; UPDATES_LATE, the update follows the body of the step; EPOCH, the steps of
one call of job.steps(); TRAININGS, how many trainings follow each other.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import threading
import weakref
from typing import Any

import elastic.torch
import torch
import torch.distributed as dist
import without_compiler  # noqa: F401

STEPS = int(os.environ["STEPS"])
EPOCH = int(os.environ.get("EPOCH", STEPS))
TRAININGS = int(os.environ.get("TRAININGS", "1"))
UPDATES_LATE = "UPDATES_LATE" in os.environ
BACKEND = os.environ["BACKEND"]
DEVICE = torch.device("cuda:0" if "nccl" in BACKEND else "cpu")
DATA = torch.randn(64, 4, generator=torch.Generator().manual_seed(1)).to(DEVICE)
LABELS = DATA.square().sum(dim=1, keepdim=True)


def say(*words: object) -> None:
    print(*words, flush=True)


def lose_connection() -> None:
    say("failed")
    raise RuntimeError("[gloo] Connection closed by peer")


class Adam(torch.optim.Adam):
    """As one with collectives in its update."""

    is_interrupted = False

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        if self.is_interrupted:
            lose_connection()
        return result


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model.register_buffer("hidden", torch.zeros(1), persistent=False)
    model.to(DEVICE)
    optimizer = Adam(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def digest(*states: Any) -> str:
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(value.cpu().numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                found.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())

    for state in states:
        add(state)
    return found.hexdigest()[:16]


def undisturbed() -> torch.Tensor:
    torch.manual_seed(0)
    model, optimizer, scheduler = build()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(DATA), LABELS).backward()
        optimizer.step()
        scheduler.step()
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def train() -> torch.nn.Module:
    torch.manual_seed(int(os.environ["SEED"]))
    model, optimizer, scheduler = build()
    timeout = float(os.environ["NOTICE_TIMEOUT"])
    job = elastic.torch.membership(
        model,
        optimizer,
        also={"scheduler": scheduler},
        backend=BACKEND,
        notice_timeout=timeout,
    )
    reducers: list[weakref.ref[Any]] = []
    groups: list[Any] = []

    def changed(change: elastic.torch.Change | None) -> None:
        if change is None and "CALLBACK_FAILS" in os.environ:
            lose_connection()
        groups[:] = [dist.new_group(list(range(job.world_size)))]
        reducers.append(weakref.ref(job.model.reducer))
        if change is not None:
            say("change", change.round, change.source, change.step, len(change.new))

    def update(order: str) -> None:
        optimizer.is_interrupted = order == "within"
        optimizer.step()
        if order == "between":
            lose_connection()
        scheduler.step()
        model.hidden += 1
        if order == "after":
            lose_connection()

    job.on_change(changed)
    with job:
        for step in (one for end in range(EPOCH, STEPS + 1, EPOCH) for one in job.steps(end)):
            with step:
                say("at", int(step), job.rank, job.world_size, digest(*states(job, scheduler)))
                order = sys.stdin.readline().strip()
                if order == "die":
                    os._exit(0)
                if order == "raise":
                    raise RuntimeError("a bad batch")
                total = torch.ones(1, device=DEVICE)
                dist.all_reduce(total, group=groups[0])
                assert int(total) == job.world_size
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(job.model(DATA), LABELS)
                loss.backward()
                if order == "before":
                    lose_connection()
                if not UPDATES_LATE:
                    update(order)
            if UPDATES_LATE:
                update(order)
        gc.collect()
        alive = sum(one() is not None for one in reducers)
        say("end", job.step, digest(*states(job, scheduler)), int(model.hidden), alive)
    return model


def main() -> None:
    for _ in range(TRAININGS):
        model = train()
    own = torch.cat([one.detach().flatten() for one in model.parameters()])
    expected = undisturbed()
    say("same" if torch.allclose(own, expected, rtol=1e-4, atol=1e-5) else f"{own} {expected}")
    say("threads", threading.active_count(), "sockets", count_sockets())
    os._exit(0)  # a thread of gloo may still need the interpreter


def states(job: Any, scheduler: Any) -> list[Any]:
    return [job.module.state_dict(), job.optimizer.state_dict(), scheduler.state_dict()]


def count_sockets() -> int:
    names = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:
            continue
    return sum(name.startswith("socket:") for name in names)


main()
