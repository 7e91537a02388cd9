"""Shows a recovery: starts the training, kills one worker with SIGKILL, and prints the output.

    python3 examples/watch_recovery.py

Needs the installed package, torch and scikit-learn (examples/demo.sh creates such an environment).
Exits with 0 if the job succeeded although a worker was killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KILL_AFTER = re.compile(r"epoch 3 ")
CONTINUED = re.compile(r"continuing with epoch (\d+)")
FINISHED = re.compile(r"finished: accuracy ([0-9.]+)")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="digits_") as folder:
        return watch(Path(folder))


def watch(folder: Path) -> int:
    training = Path(__file__).with_name("train_digits.py")
    command = [
        *(sys.executable, "-m", "elastic", "--standalone", "--warm"),
        *("--nproc-per-node", "2", "--max-restarts", "3"),
        # Slow enough that the kill comes before the end.
        *(str(training), "--delay-per-step", "0.05"),
        *("--checkpoint", str(folder / "digits.pt"), "--pid-dir", str(folder)),
    ]
    print("$ elastic-launch", " ".join(command[3:9]), "examples/train_digits.py", flush=True)
    started = time.monotonic()
    killed = continued = accuracy = None
    pid = epoch = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            now = time.monotonic() - started
            print(f"{now:6.2f} s  {line}", end="", flush=True)
            if found := FINISHED.search(line):
                accuracy = float(found[1])
            elif killed is None and KILL_AFTER.search(line):
                pid = int((folder / "rank1.pid").read_text())
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic() - started
                print(f"{killed:6.2f} s  --- killed rank 1, pid {pid} ---", flush=True)
            elif killed is not None and (found := CONTINUED.search(line)):
                continued, epoch = now, int(found[1])
    if launcher.returncode != 0 or killed is None or continued is None or accuracy is None:
        print(f"the launcher exited with {launcher.returncode}; accuracy {accuracy}")
        return 1
    print(
        f"killed: rank 1, pid {pid}, by SIGKILL during the training\n"
        f"after {continued - killed:.2f} s two new workers continued with epoch {epoch} from the "
        f"checkpoint; accuracy {accuracy}\n"
        "torchrun took 7.3 s in the scene worker-killed of docs/evidence.md, on two nodes: each "
        "new worker imports torch"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
