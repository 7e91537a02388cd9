"""Ranks of a process group, forked from one process that has imported torch once.

Reads {"port": N, "ranks": N, "name": S} per line and answers with the seconds that a store barrier
and connecting with init_process_group(gloo) took, from the common start to the last rank's return.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta

import torch.distributed as dist
from gate import Gate

TIMEOUT = timedelta(seconds=60)
ALARM_SECONDS = 90


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
    gates["end"].pass_through()  # exiting earlier would close connections that other ranks use
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
