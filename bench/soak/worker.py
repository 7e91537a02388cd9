"""Trains examples/train_digits.py, with a stamp of each step as the script of the campaign has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from bench.faults.worker import stamp  # noqa: E402

stamp("start")

import train_digits  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

if __name__ == "__main__":
    register_optimizer_step_post_hook(lambda *_: stamp("step"))
    sys.argv[1:] = os.environ["SOAK_ARGUMENTS"].split()
    train_digits.main()
    stamp("done")
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo may still wait for the interpreter
