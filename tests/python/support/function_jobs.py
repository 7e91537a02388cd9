"""Jobs of one node that call functions."""

from __future__ import annotations

from typing import Any

from elastic.launcher import LaunchConfig


def config(nproc: int = 2, **more: Any) -> LaunchConfig:
    fields: dict[str, Any] = {
        "run_id": "functions",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "localhost:0",
        "max_restarts": 0,
    }
    return LaunchConfig(1, 1, nproc, **(fields | more))
