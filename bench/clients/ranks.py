"""Ranks of a process group, forked from one process that has imported torch once.

Reads {"port": N, "ranks": N, "name": S} per line and answers with the seconds that a store barrier
and connecting with init_process_group(gloo) took, from the common start to the last rank's return.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from datetime import timedelta

import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)
ALARM_SECONDS = 90
STAMP = struct.Struct("=q")


class Gate:
    """Lets the parent hold all ranks until each has arrived, and start them at once."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._arrived = os.pipe()
        self._open = os.pipe()
        self._left = os.pipe()

    def pass_through(self) -> None:
        os.write(self._arrived[1], b"a")
        os.read(self._open[0], 1)

    def leave(self) -> None:
        os.write(self._left[1], STAMP.pack(time.monotonic_ns()))

    def open(self) -> int:
        """In the parent: waits for all ranks, lets them through and says when."""
        for _ in range(self._ranks):
            os.read(self._arrived[0], 1)
        now = time.monotonic_ns()
        os.write(self._open[1], b"o" * self._ranks)
        return now

    def time(self) -> float:
        """In the parent: seconds from the gate's opening to the last rank's leave()."""
        begun = self.open()
        stamps = [os.read(self._left[0], STAMP.size) for _ in range(self._ranks)]
        last: int = max(STAMP.unpack(stamp)[0] for stamp in stamps)
        return (last - begun) / 1e9


def rank_main(rank: int, ranks: int, port: int, name: str, gates: dict[str, Gate]) -> None:
    signal.alarm(ALARM_SECONDS)  # a rank ends even if another rank's failure leaves it at a gate
    store = dist.TCPStore("127.0.0.1", port, timeout=TIMEOUT)
    store.add(f"{name}/warm", 1)
    gates["barrier"].pass_through()
    store.barrier(f"{name}/barrier", ranks, TIMEOUT)
    gates["barrier"].leave()
    gates["init"].pass_through()
    group_store = dist.PrefixStore(name, dist.TCPStore("127.0.0.1", port, timeout=TIMEOUT))
    dist.init_process_group("gloo", store=group_store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    gates["init"].leave()
    gates["end"].pass_through()  # who left at once would cut the connections of those still at it
    dist.destroy_process_group()


def measure(port: int, ranks: int, name: str) -> dict[str, float]:
    gates = {what: Gate(ranks) for what in ("barrier", "init", "end")}
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                rank_main(rank, ranks, port, name, gates)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    took = {what: gates[what].time() for what in ("barrier", "init")}
    gates["end"].open()
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        if status != 0:
            raise RuntimeError(f"a rank ended with status {status}")
    return took


def main() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for line in sys.stdin:
        print(json.dumps(measure(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
