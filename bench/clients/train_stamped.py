"""A worker of scene "warm": stamps when torch is imported, at its first all-reduce and first step.

`train_stamped.py idle` waits after its first all-reduce; `train_stamped.py digits CHECKPOINT`
trains examples/train_digits.py without end, with a pause after each step.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import sklearn.datasets  # noqa: F401  (train_digits.py imports it)
import torch
import torch.distributed as dist
from stamping import stamp
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


def train_digits(checkpoint: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    import train_digits

    def first_step(_optimizer: Optimizer, _args: object, _keywords: object) -> None:
        stamp("step")
        handle.remove()

    handle = register_optimizer_step_post_hook(first_step)
    sys.argv[1:] = ["--checkpoint", checkpoint, "--epochs=1000000", "--delay-per-step=0.5"]
    train_digits.main()


def main() -> None:
    stamp("loaded")
    if sys.argv[1] == "digits":
        train_digits(sys.argv[2])
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    stamp("reduced")
    signal.pause()


if __name__ == "__main__":
    main()
