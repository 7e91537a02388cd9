"""Trains on handwritten digits with accelerate, and stops at the step on which all ranks agree.

elastic-launch --standalone --nproc-per-node=2 examples/accelerate_digits.py --checkpoint DIR
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from elastic import worker
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, help="directory to continue from and to write")
    return parser.parse_args()


def train(args: argparse.Namespace, accelerator: Accelerator) -> int:
    """Returns the number of completed steps."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16.0
    data = TensorDataset(images, torch.tensor(digits.target, dtype=torch.int64))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    counter = args.checkpoint / "step" if args.checkpoint else None
    if counter is not None and counter.exists():
        accelerator.load_state(args.checkpoint)
        step = int(counter.read_text())
    while step < args.steps:
        for batch, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(batch), labels))
            optimizer.step()
            step += 1
            is_last = worker.should_stop(step) or step == args.steps
            if is_last and args.checkpoint:
                with worker.section("checkpoint"):
                    accelerator.save_state(args.checkpoint)
                    if accelerator.is_main_process:
                        counter.write_text(str(step))
            if is_last:
                return step
    return step


def main() -> None:
    args = parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    step = train(args, accelerator)
    accelerator.wait_for_everyone()  # all ranks end together
    accelerator.print(f"stopped after {step} steps")
    accelerator.end_training()


if __name__ == "__main__":
    main()
    # As in train_digits.py: a thread of gloo may still need the interpreter.
    sys.stdout.flush()
    os._exit(0)
