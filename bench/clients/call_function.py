"""Calls a function in workers by elastic_launch, and prints the time until the last one runs it.

Usage: call_function.py elastic|torch WORKERS

Prints the seconds from the call of elastic_launch to the first line of the function in the last
worker.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

MODULES = {"elastic": "elastic.launcher", "torch": "torch.distributed.launcher"}


def now() -> int:
    return time.monotonic_ns()


def main() -> None:
    launcher = importlib.import_module(MODULES[sys.argv[1]])
    workers = int(sys.argv[2])
    config = launcher.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="bench",
        max_restarts=0,
    )
    begun = now()
    values = launcher.elastic_launch(config, now)()
    assert len(values) == workers
    print(json.dumps({"seconds": (max(values.values()) - begun) / 1e9}))


if __name__ == "__main__":
    main()
