"""A rank that trains with pauses: stub_pausing_rank.py SECONDS STEP

A step takes STEP seconds on average. At random moments, the same for all ranks, a pause of ten
steps follows, as for an evaluation or a checkpoint; the first one after the second step.
"""

from __future__ import annotations

import os
import random
import sys
import time

from elastic import worker

FIRST_PAUSE = 2
PAUSE_STEPS = 10
STEPS_BETWEEN_PAUSES = 25


def main() -> None:
    end, length = time.monotonic() + float(sys.argv[1]), float(sys.argv[2])
    common, own = random.Random(1), random.Random(int(os.environ["RANK"]))
    step = pauses = 0
    while time.monotonic() < end:
        time.sleep(own.uniform(0.5, 1.5) * length)  # a stub trains by sleeping
        step += 1
        worker.progress(step)
        if step == FIRST_PAUSE or common.randrange(STEPS_BETWEEN_PAUSES) == 0:
            time.sleep(PAUSE_STEPS * length)
            pauses += 1
    sys.stdout.write(f"{step} steps and {pauses} pauses\n")


if __name__ == "__main__":
    main()
