"""Writes lines that contain the time of their write (CLOCK_MONOTONIC, ns) to stdout.

Usage: write_times.py COUNT PAUSE_SECONDS
"""

from __future__ import annotations

import os
import random
import sys
import time


def main() -> None:
    count, pause = int(sys.argv[1]), float(sys.argv[2])
    chance = random.Random(int(os.environ["LOCAL_RANK"]))
    for _ in range(count):
        time.sleep(chance.uniform(0.5, 1.5) * pause)
        os.write(1, f"{time.monotonic_ns()}\n".encode())


if __name__ == "__main__":
    main()
