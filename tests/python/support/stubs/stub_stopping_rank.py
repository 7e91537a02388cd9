"""A rank without torch that steps together with the others and stops at the agreed step.

    stub_stopping_rank.py DIRECTORY STEPS MILLISECONDS [MODE]

Ranks step together through lines in files below DIRECTORY, as collectives would make them.
MODE: fail:RANK, that rank fails after it was asked to stop; free, the ranks neither pause nor wait
for each other.
Writes its last step to DIRECTORY/ended.ROUND.RANK or DIRECTORY/stopped.ROUND.RANK.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from elastic import worker

directory, steps, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000
mode, _, value = (sys.argv[4] if len(sys.argv) > 4 else "").partition(":")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
round_number = worker.round()


def together(step: int) -> None:
    """Waits until every rank has begun this step."""
    mine = directory / f"step.{round_number}.{rank}"
    partial = mine.with_suffix(f".{rank}.new")
    partial.write_text(str(step))
    os.replace(partial, mine)
    for other in range(size):
        path = directory / f"step.{round_number}.{other}"
        while True:
            try:
                if int(path.read_text() or 0) >= step:
                    break
            except FileNotFoundError:
                pass
            time.sleep(0.001)


outcome = "ended"
for step in range(1, steps + 1):
    if mode != "free":
        together(step)
        time.sleep(pause)
    if worker.should_stop(step):
        outcome = "stopped"
        break
    if step == 3:
        sys.stdout.write(f"{rank} runs\n")
assert worker.has_stopped() == (outcome == "stopped")
if outcome == "stopped" and mode == "fail" and rank == int(value) and round_number == 0:
    sys.exit(9)
# At once: the rank may be killed while it writes.
final = directory / f"final.{round_number}.{rank}"
final.write_text(str(step))
final.rename(directory / f"{outcome}.{round_number}.{rank}")
sys.stdout.write(f"{rank} {outcome} {step}\n")
