"""What an agent runs, where its workers stand, and how a run ended: values for Python programs.

The names are those of ``torch.distributed.elastic``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from elastic import _C
from elastic.errors import ConfigError
from elastic.multiprocessing.logs import LogsSpecs, Std
from elastic.text import substitute

if TYPE_CHECKING:
    from elastic.multiprocessing.errors.evidence import ProcessFailure


class WorkerState(str, Enum):
    """States of a worker group, as torch names them."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class WorkerSpec(NamedTuple):
    """What one agent runs. ``${local_rank}`` is replaced in ``entrypoint`` and ``args``."""

    role: str
    local_world_size: int
    entrypoint: str  # a program; searched in PATH if it has no slash
    args: tuple[str, ...] = ()
    run_id: str = "none"
    max_restarts: int = 3  # of the job, on whichever node
    master_port: int | None = None  # None: a free one in each round
    master_addr: str | None = None
    local_addr: str | None = None
    virtual_local_rank: bool = False

    def get_entrypoint_name(self) -> str:
        return os.path.basename(self.entrypoint)


class Worker:
    """One worker's place in the present round; ``id`` is its process id once it runs."""

    __slots__ = ("global_rank", "id", "local_rank", "role_rank", "role_world_size", "world_size")

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: int | None = None
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size


class WorkerGroup:
    """The agent's workers in the present round."""

    __slots__ = (
        "group_rank",
        "group_world_size",
        "master_addr",
        "master_port",
        "spec",
        "state",
        "workers",
    )

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(rank) for rank in range(spec.local_world_size)]
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.state = WorkerState.INIT
        self.master_addr: str | None = None
        self.master_port: int | None = None


class RunResult(NamedTuple):
    """How a run ended. ``failures`` are this node's by global rank, the first one first."""

    state: WorkerState
    return_values: Mapping[int, object]
    failures: Mapping[int, ProcessFailure]
    exit_code: int  # the same on all nodes that heard how the job ended
    message: str  # one sentence; "" on success
    run_id: str
    restart_count: int
    max_restarts: int
    stopped: tuple[int, ...]  # ranks that the agent stopped in the last round
    # As every node is told. None: the job has one node, or this one ended without it.
    job: _C.JobResult | None = None

    def is_failed(self) -> bool:
        return self.state is WorkerState.FAILED


def check(spec: WorkerSpec, shutdown_timeout: float) -> None:
    """Refuses what cannot be, with the field's name."""
    if not isinstance(spec.entrypoint, str):
        raise ConfigError("functions as entry points are not available yet; name a program")
    if not spec.entrypoint:
        raise ConfigError("the entry point is empty")
    if spec.local_world_size < 1:
        raise ConfigError(f"local_world_size is {spec.local_world_size}: expected 1 or more")
    if spec.max_restarts < 0:
        raise ConfigError(f"max_restarts is {spec.max_restarts}: expected 0 or more")
    if shutdown_timeout < 0:
        raise ConfigError(f"shutdown_timeout is {shutdown_timeout}: expected 0 or more")
    if spec.master_addr and spec.local_addr and spec.master_addr != spec.local_addr:
        raise ConfigError("master_addr and local_addr name different addresses of the only node")


def templates(
    spec: WorkerSpec, logs: LogsSpecs, environment: Mapping[str, str]
) -> list[_C.WorkerTemplate]:
    targets = {
        "inherit": _C.StreamTarget.INHERIT,
        "file": _C.StreamTarget.FILE,
        "tee": _C.StreamTarget.TEE,
        "discard": _C.StreamTarget.DISCARD,
    }
    return [
        _C.WorkerTemplate(
            [substitute(word, rank) for word in (spec.entrypoint, *spec.args)],
            env=_virtual(rank, environment) if spec.virtual_local_rank else {},
            stdout_target=targets[logs.target(rank, Std.OUT)],
            stderr_target=targets[logs.target(rank, Std.ERR)],
        )
        for rank in range(spec.local_world_size)
    ]


def _virtual(local_rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a worker sees its own GPU alone, as device 0."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    device = str(local_rank)
    if visible is not None:
        devices = [name.strip() for name in visible.split(",") if name.strip()]
        if local_rank >= len(devices):
            raise ConfigError(
                f"CUDA_VISIBLE_DEVICES={visible} has no device for the virtual local rank "
                f"{local_rank}"
            )
        device = devices[local_rank]
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
