"""A worker of scene "collectives": all-reduces, as quickly as its argument says, then a wait.

Stamp "watch" has the id of the thread that reads torch's flight recorder instead of a time. At
SIGUSR1 rank 0 enters no further operation, and the others wait for it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from stamping import stamp

WATCH = "elastic-watch"  # csrc/worker/flight_recorder.cc


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_asked = []
    if dist.get_rank() == 0:
        signal.signal(signal.SIGUSR1, lambda *_: is_asked.append(True))
    else:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    values = torch.ones(1024)
    for _ in range(3):
        dist.all_reduce(values)
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == WATCH:
            stamp("watch", int(task.name))
    while not is_asked:
        dist.all_reduce(values)
        time.sleep(float(sys.argv[1]))
    time.sleep(3600)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
