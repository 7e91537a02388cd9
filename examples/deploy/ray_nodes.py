"""Starts one launcher on each of two nodes of a Ray cluster; the launchers start the workers.

    ray job submit --working-dir . -- python ray_nodes.py

/checkpoints is a directory that all nodes share.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES = 2
GPUS = 2  # of each node: one worker for each
TRIES = 10
# Too few nodes, a lost coordinator or node, stopped at an agreed step or by SIGTERM: another try
# can succeed (docs/troubleshooting.md).
AGAIN = (75, 77, 78, 80, 143)


def address() -> str:
    return str(ray.util.get_node_ip_address())


def launch(endpoint: str) -> int:
    command = [
        *("elastic-launch", f"--nnodes={NODES}", "--rdzv-backend=c10d"),
        *(f"--rdzv-endpoint={endpoint}:29400", "--rdzv-id=digits"),
        *(f"--nproc-per-node={GPUS}", "--max-restarts=3"),
        *("train_digits.py", "--checkpoint=/checkpoints/digits.pt"),
    ]
    return subprocess.run(command, check=False).returncode


def run() -> int:
    """Runs the job once, on nodes that are different hosts."""
    group = placement_group([{"CPU": GPUS, "GPU": GPUS}] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    def on(node: int, function: Any) -> Any:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
        # If the host is lost, Ray starts the task on another one, where it joins the running job.
        task = ray.remote(num_cpus=GPUS, num_gpus=GPUS, max_retries=-1)(function)
        return task.options(scheduling_strategy=place)

    endpoint = ray.get(on(0, address).remote())
    codes = ray.get([on(node, launch).remote(endpoint) for node in range(NODES)])
    ray.util.remove_placement_group(group)
    return next((code for code in codes if code), 0)


def main() -> int:
    ray.init()
    code = 0
    for _ in range(TRIES):
        code = run()
        if code not in AGAIN:
            break
    return code


if __name__ == "__main__":
    sys.exit(main())
