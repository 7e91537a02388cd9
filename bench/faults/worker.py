"""The training script of the campaign: all-reduces in a loop, and writes a stamp of each step.

It runs under every launcher. Rank 0 sees the file `done` in FAULTS_DIR, and all ranks end after the
same step. A rank that finds a file `order<RANK>` there obeys it: `raise`, `hang`, `exit 0`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

FOLDER = Path(os.environ["FAULTS_DIR"])
RANK = int(os.environ["RANK"])
STEP_S = 0.05
GROUP_TIMEOUT = timedelta(seconds=20)  # the job's limit for a collective, for every launcher
_stamps = os.open(FOLDER / "stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def stamp(kind: str) -> None:
    words = (kind, os.environ["FAULTS_NODE"], os.getpid(), RANK, os.environ["WORLD_SIZE"])
    os.write(_stamps, f"{' '.join(map(str, words))} {time.monotonic()}\n".encode())


def heartbeat() -> Callable[[int], object]:
    """What the launcher offers to a script that reports its steps."""
    if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        client = RankMonitorClient()
        client.init_workload_monitoring()
        return lambda step: client.send_heartbeat()
    if os.environ["FAULTS_LAUNCHER"] == "elastic-launch":
        from elastic import worker

        return worker.progress
    return lambda step: None


def obey() -> None:
    path = FOLDER / f"order{RANK}"
    if not path.exists():
        return
    order = path.read_text()
    path.unlink()
    stamp("fault")
    if order == "raise":
        raise ValueError("an error of the training script")
    if order == "exit 0":
        os._exit(0)
    while True:  # hang
        time.sleep(1)


def main() -> None:
    stamp("start")
    if os.environ.get("FAULTS_FAILS") == str(RANK):
        raise SystemExit("a wrong configuration")
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    report = heartbeat()
    stamp("joined")
    step = 0
    while True:
        obey()
        is_done = torch.tensor(float(RANK == 0 and (FOLDER / "done").exists()))
        dist.all_reduce(is_done)
        step += 1
        stamp("step")
        report(step)
        if os.environ.get("FAULTS_CHATTY"):
            with contextlib.suppress(OSError):  # as a logger does on a full disk
                print("a line of the training script " * 40, flush=True)
        if is_done:
            break
        time.sleep(STEP_S)
    dist.barrier()
    stamp("done")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo may still wait for the interpreter
