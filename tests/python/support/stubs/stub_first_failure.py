"""A worker of first_failure.py: FOLDER CULPRIT WAY DELAY."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import traceback  # noqa: F401  # as a program of some size has done already
from pathlib import Path

folder, culprit, way, delay = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
rank = int(os.environ["RANK"])


def publish(name, text):
    (folder / (name + ".new")).write_text(text)
    os.rename(folder / (name + ".new"), folder / name)


def die_last():
    publish("has failed", "")  # the error has been recorded
    time.sleep(20)


def fail():
    publish(f"failed{rank}", str(time.monotonic()))
    if rank == culprit and way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == culprit and way == "exit":
        os._exit(3)
    if rank == culprit:
        atexit.register(die_last)
    raise KeyError(rank)


def has_failed():
    """Whether the culprit has got further than to write the time of its failure."""
    if (folder / "has failed").exists():
        return True
    try:
        process = (folder / f"pid{culprit}").read_text()
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True  # the process has ended


if rank == culprit and way == "record":
    from elastic.multiprocessing.errors import record

    fail = record(fail)
publish(f"pid{rank}", str(os.getpid()))
publish(f"ready{rank}", str(time.monotonic()))
while not all((folder / f"ready{other}").exists() for other in (0, 1)):
    time.sleep(0.005)
begin = max(float((folder / f"ready{other}").read_text()) for other in (0, 1)) + 0.2
time.sleep(max(0.0, begin - time.monotonic()))
if rank != culprit:
    while not has_failed():
        time.sleep(0.0005)
    time.sleep(delay)
fail()
