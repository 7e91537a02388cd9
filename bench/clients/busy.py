"""Keeps one core awake without delaying other processes.

Runs in the class SCHED_IDLE, so any other process that becomes runnable preempts it at once. Ends
with its parent.
"""

from __future__ import annotations

import os


def main() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


if __name__ == "__main__":
    main()
