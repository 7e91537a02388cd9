"""Preempts the digits job, starts it again, and shows that the result is that of an unbroken run.

    python examples/preempt_and_resume.py [--epochs N]

The first run receives SIGTERM, as from a scheduler that needs the machine. With --drain all ranks
stop after the same step and rank 0 saves the state; the launcher exits with 80, "resumable". The
second run continues in the middle of the epoch.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

EXIT_STOPPED_AT_STEP = 80
SCRIPT = Path(__file__).with_name("train_digits.py")


def command(checkpoint: Path, epochs: int, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "elastic", "--standalone", "--nproc-per-node=2", "--warm",
        "--drain=60", str(SCRIPT), f"--checkpoint={checkpoint}", f"--epochs={epochs}", *options,
    ]  # fmt: skip


def run(checkpoint: Path, epochs: int) -> str:
    """Runs the job to its end and returns the accuracy."""
    done = subprocess.run(command(checkpoint, epochs), stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    finished = re.search(r"finished: accuracy (\S+)", done.stdout)
    if done.returncode != 0 or finished is None:
        sys.exit(f"the job ended with exit code {done.returncode}")
    return finished[1]


def preempt(checkpoint: Path, epochs: int, delay: float) -> bool:
    """Starts the job and sends SIGTERM after the first epoch; False if it has ended before."""
    slow = f"--delay-per-step={delay}"
    with subprocess.Popen(
        command(checkpoint, epochs, slow), stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        for line in job.stdout:
            print(line, end="", flush=True)
            if line.startswith("epoch 0 "):
                job.send_signal(signal.SIGTERM)
    if job.returncode not in (0, 128 + signal.SIGTERM, EXIT_STOPPED_AT_STEP):
        sys.exit(f"expected exit code {EXIT_STOPPED_AT_STEP}, not {job.returncode}")
    return job.returncode == EXIT_STOPPED_AT_STEP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        unbroken = run(Path(directory, "unbroken.pt"), args.epochs)
        # On a busy machine the job may end before the notice has an effect: then with longer steps.
        for delay in (0.01, 0.2, 2.0):
            preempted = Path(directory, f"preempted.{delay}.pt")
            if preempt(preempted, args.epochs, delay):
                break
        else:
            sys.exit("the job ended before it was preempted")
        resumed = run(preempted, args.epochs)
    print(f"accuracy of the unbroken run {unbroken}, of the preempted and resumed one {resumed}")
    if resumed != unbroken:
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
