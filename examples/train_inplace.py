"""Trains on handwritten digits and keeps its processes when members of the job change.

    elastic-launch --on-membership-change=inplace --nnodes=1:4 --rdzv-backend=c10d \\
        --rdzv-id=digits --rdzv-endpoint=HOST:29400 --max-restarts=3 examples/train_inplace.py \\
        --checkpoint digits.pt

Start the command on each node; stop one, and start it again. The processes of the other nodes go on
from the step at which they were, without a checkpoint. That is only for a start of the whole job.
Under another launcher, and without the option, this is ordinary data-parallel training.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import elastic.torch
import torch
from torch import nn
from train_digits import Digits, build_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=48, help="samples per step, all workers")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", type=Path, help="file to continue from and to write")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps")
    parser.add_argument("--report-every", type=int, default=100, help="steps")
    parser.add_argument(
        "--delay-per-step", type=float, default=0.0, help="seconds; slows the training down"
    )
    parser.add_argument("--delay-until", type=Path, help="no delay once this file exists")
    return parser.parse_args()


def save_checkpoint(path: Path, job: elastic.torch.TrainingMembership) -> None:
    """Replaces the file atomically: a process that is killed leaves the old file intact."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        torch.save(
            {
                "step": job.step,
                "model": job.module.state_dict(),
                "optimizer": job.optimizer.state_dict(),
            },
            file,
        )
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def report(job: elastic.torch.TrainingMembership, change: elastic.torch.Change | None) -> None:
    if job.rank == 0:
        print(change or f"started with {job.world_size} ranks at step {job.step}", flush=True)
    print(f"rank {job.rank} of {job.world_size}: pid {os.getpid()}, step {job.step}", flush=True)


@torch.no_grad()
def test_accuracy(model: nn.Module, data: Digits) -> float:
    predicted = model(data.test_images).argmax(dim=1)
    return float((predicted == data.test_labels).float().mean())


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    data = Digits(torch.device("cpu"), seed=0)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    start = 0
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]

    batches = elastic.torch.GlobalBatches(len(data.train_labels), args.batch_size)
    job = elastic.torch.membership(model, optimizer, batches, start=start)
    job.on_change(lambda change: report(job, change))
    with job:
        for step in job.steps(args.steps):
            with step:
                batch = batches[step]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(
                    job.model(data.train_images[batch]), data.train_labels[batch]
                )
                loss.backward()
                optimizer.step()
                if job.rank == 0 and step % args.report_every == 0:
                    print(f"step {int(step)}: loss {loss.item():.4f}", flush=True)
            if args.delay_per_step > 0 and not (args.delay_until and args.delay_until.exists()):
                time.sleep(args.delay_per_step)
            if args.checkpoint and job.rank == 0 and job.step % args.checkpoint_every == 0:
                save_checkpoint(args.checkpoint, job)
        if job.rank == 0:
            if job.step >= args.steps:
                accuracy = test_accuracy(model, data)
                print(f"finished: step {job.step} accuracy {accuracy:.4f}", flush=True)
            else:
                print(f"stopped at step {job.step}, as the job or this node was asked", flush=True)
            if args.checkpoint:
                save_checkpoint(args.checkpoint, job)


if __name__ == "__main__":
    main()
    # A thread of gloo, which outlives the process group, may still need the interpreter.
    sys.stdout.flush()
    os._exit(0)
