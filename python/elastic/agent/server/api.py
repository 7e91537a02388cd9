"""The specification, the workers' state and the result of an agent's run, for Python programs.

The names are those of ``torch.distributed.elastic``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from elastic import _C, _environment, _lazy, constants
from elastic._data import data, field
from elastic.errors import ConfigError
from elastic.multiprocessing.logs import LogOptions, Std
from elastic.text import substitute

if TYPE_CHECKING:
    from elastic.multiprocessing.calls import FunctionCalls
    from elastic.multiprocessing.errors.evidence import ProcessFailure


# torch's module of this name has these classes too.
_HOMES = {
    "elastic.torch_compat.agents.simple_elastic_agent": (
        "DEFAULT_ROLE ElasticAgent SimpleElasticAgent"
    )
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)


def _get_fq_hostname() -> str:
    """The full name of this host; programs for torch import it."""
    import socket

    return socket.getfqdn(socket.gethostname())


@data
class _RoleInstanceInfo:
    """The role of a node, its rank and its number of workers; programs for torch import it."""

    role: str
    rank: int
    local_world_size: int

    def serialize(self) -> bytes:
        import json

        return json.dumps(vars(self)).encode()

    @staticmethod
    def deserialize(data: bytes) -> _RoleInstanceInfo:
        import json

        return _RoleInstanceInfo(**json.loads(data))

    @staticmethod
    def compare(obj1: _RoleInstanceInfo, obj2: _RoleInstanceInfo) -> int:
        """The order by role, then by rank, for ``functools.cmp_to_key``."""
        if obj1.role == obj2.role:
            return obj1.rank - obj2.rank
        return 1 if obj1.role > obj2.role else -1

    @staticmethod
    def find_role_boundaries(roles_infos: list[_RoleInstanceInfo], role: str) -> tuple[int, int]:
        """The first and the last index of a role in a sorted list; (-1, -1) if it has none."""
        found = [index for index, info in enumerate(roles_infos) if info.role == role]
        return (found[0], found[-1]) if found else (-1, -1)


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


@data
class WorkerSpec:
    """What one agent runs: a program, or a function that is called in a separate process.

    ``${local_rank}`` is replaced in a program and in ``args`` that are text.
    """

    role: str
    local_world_size: int
    rdzv_handler: Any = None  # None: the agent's `rendezvous`, or a job of one node
    fn: Callable[..., Any] | None = None  # torch's older name for a function as entry point
    entrypoint: Callable[..., Any] | str | None = None  # programs are searched in PATH
    args: tuple[Any, ...] = ()
    max_restarts: int = 3  # of the job, over all nodes
    monitor_interval: float = 0.1  # no effect on the native agent, which does not poll
    master_port: int | None = None  # None: a free one in each round
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    run_id: str | None = None  # None: the handler's

    def __post_init__(self) -> None:
        if self.entrypoint is None:
            self.entrypoint = self.fn

    def what(self) -> Callable[..., Any] | str | None:
        """The entry point, from ``entrypoint`` or ``fn``."""
        return self.entrypoint if self.entrypoint is not None else self.fn

    def job_id(self) -> str:
        if self.run_id is not None:
            return self.run_id
        handler = self.rdzv_handler
        return str(handler.get_run_id()) if handler is not None else constants.NO_RUN_ID

    def get_entrypoint_name(self) -> str:
        entry = self.what()
        if isinstance(entry, str):
            return os.path.basename(entry)
        return str(getattr(entry, "__qualname__", entry))


class Worker:
    """One worker's ranks in the current round; ``id`` is its process id once it runs."""

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: Any = None
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __str__(self) -> str:
        fields = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in fields)

    __repr__ = __str__


class WorkerGroup:
    """The agent's workers in the current round."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(rank) for rank in range(spec.local_world_size)]
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.store: Any = None  # of the round, if a rendezvous handler provides one
        self.state = WorkerState.INIT
        self.master_addr: str | None = None
        self.master_port: int | None = None


@data
class RunResult:
    """How a run ended. ``failures`` are this node's by global rank, the first one first."""

    state: WorkerState
    # By global rank; None for a program.
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    exit_code: int = 0  # the same on all nodes that received the job's result
    message: str = ""  # one sentence; "" on success
    run_id: str = ""
    restart_count: int = 0
    max_restarts: int = 0
    stopped: tuple[int, ...] = ()  # ranks that the agent stopped in the last round
    # When ranks of this node exited with 0 in the last round, as wall time, by rank.
    succeeded: Mapping[int, float] = field(default_factory=dict)
    # The same on every node. None if the job has one node, or if this node did not receive it.
    job: _C.JobResult | None = None
    is_cause: bool = True  # False: the worker that ``job`` names is not one of ``failures``
    # The latest restarts of the job with their phases on this node; docs/observing.md.
    incidents: tuple[Mapping[str, Any], ...] = ()
    # The latest hangs that were found, each with ``at`` (by time.monotonic()), ``round``, and the
    # screen as ``message``; docs/hangs.md.
    hangs: tuple[Mapping[str, Any], ...] = ()
    # The same of the lines about ranks that wait for one that does nothing, and their ends.
    stalls: tuple[Mapping[str, Any], ...] = ()
    # The same of the lines about operations with different sizes or types.
    mismatches: tuple[Mapping[str, Any], ...] = ()
    # The same of the lines about hosts that are excluded, and readmitted; docs/policy.md.
    hosts: tuple[Mapping[str, Any], ...] = ()
    # The latest finding of each check of this node: host, check, verdict and reason;
    # docs/policy.md.
    node_checks: tuple[Mapping[str, str], ...] = ()
    # The job does without this node, for what is known of its host. False if 79 is the exit code of
    # a worker: then the job has a result.
    is_unfit: bool = False

    @property
    def bad_host(self) -> dict[str, str] | None:
        """The check of this node that keeps it out of the job: host, check and reason."""
        found = [one for one in self.node_checks if one["verdict"] == "bad"]
        if not self.is_unfit or not found:
            return None
        return {key: found[-1][key] for key in ("host", "check", "reason")}

    @property
    def excluded_host(self) -> dict[str, str] | None:
        """Host and reason, if the job excludes the host and no check of this node is the reason."""
        if not self.is_unfit or self.bad_host:
            return None
        return {"host": os.uname().nodename, "reason": self.message}

    def is_failed(self) -> bool:
        return self.state is WorkerState.FAILED


def own_failure(result: RunResult) -> ProcessFailure | None:
    """The failure of this node that ended the job; None if another node's did."""
    if result.job is None:
        return next(iter(result.failures.values()), None)
    return result.failures.get(result.job.rank) if result.is_cause else None


def check(spec: WorkerSpec, shutdown_timeout: float) -> None:
    """Raises ConfigError for an invalid field, with its name."""
    if not spec.what():
        raise ConfigError("the entry point is empty")
    if not callable(spec.what()) and not isinstance(spec.what(), str | os.PathLike):
        kind = type(spec.what()).__name__
        raise ConfigError(f"the entry point is of type {kind}: expected a function or a command")
    if spec.local_world_size < 1:
        raise ConfigError(f"local_world_size is {spec.local_world_size}: expected 1 or more")
    if spec.max_restarts < 0:
        raise ConfigError(f"max_restarts is {spec.max_restarts}: expected 0 or more")
    if shutdown_timeout < 0:
        raise ConfigError(f"shutdown_timeout is {shutdown_timeout}: expected 0 or more")
    is_only_node = spec.rdzv_handler is None and spec.master_addr and spec.local_addr
    if is_only_node and spec.master_addr != spec.local_addr:
        raise ConfigError("master_addr and local_addr name different addresses of the only node")


def commands(spec: WorkerSpec, calls: FunctionCalls | None) -> list[list[str]]:
    """What the workers execute, by local rank."""
    words = (spec.what(), *spec.args)
    found = [
        [substitute(str(word), rank) for word in words] if calls is None else calls.argv(rank)
        for rank in range(spec.local_world_size)
    ]
    if "pydevd" not in sys.modules:
        return found
    from elastic._host import debugger

    return debugger.commands(found)


def templates(
    spec: WorkerSpec,
    logs: LogOptions,
    environment: Mapping[str, str],
    calls: FunctionCalls | None,
    cpus: Sequence[Sequence[int]],
    alone: bool,
) -> list[_C.WorkerTemplate]:
    targets = {name.lower(): target for name, target in _C.StreamTarget.__members__.items()}
    # With a rendezvous MASTER_ADDR is the address of rank 0's node, unless the spec names another.
    shared = {} if alone or not spec.master_addr else {"MASTER_ADDR": spec.master_addr}
    return [
        _C.WorkerTemplate(
            words,
            env=shared | (virtual_device(rank, environment) if spec.virtual_local_rank else {}),
            stdout_target=targets[logs.target(rank, Std.OUT)],
            stderr_target=targets[logs.target(rank, Std.ERR)],
            cpus=list(cpus[rank]),
        )
        for rank, words in enumerate(commands(spec, calls))
    ]


def cpu_binding(
    spec: WorkerSpec, environment: Mapping[str, str], given: Sequence[Sequence[int]] | None
) -> Sequence[Sequence[int]]:
    """The CPUs of each local rank, empty for no binding; ``given`` if they are known already."""
    if given is not None:
        return given
    if spec.numa_options is None:
        return [()] * spec.local_world_size
    from elastic._host import numa

    python = _environment.interpreter(environment)
    return numa.worker_cpus(spec.numa_options, spec.local_world_size, environment, python)


def function_calls(spec: WorkerSpec) -> FunctionCalls | None:
    """The calls of a function by local rank; None if the entry point is a program.

    Raises ConfigError if the function or an argument cannot be pickled.
    """
    entry = spec.what()
    if not callable(entry):
        return None
    from elastic.multiprocessing.calls import FunctionCalls

    return FunctionCalls(entry, function_args(spec))


def function_args(spec: WorkerSpec) -> dict[int, tuple[Any, ...]]:
    return {
        rank: tuple(substitute(arg, rank) if isinstance(arg, str) else arg for arg in spec.args)
        for rank in range(spec.local_world_size)
    }


def virtual_device(local_rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that make only the worker's own GPU visible, as device 0."""
    # ROCm uses HIP_VISIBLE_DEVICES in preference to CUDA_VISIBLE_DEVICES.
    hip, cuda = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
    source = hip if environment.get(hip) else cuda
    visible = environment.get(source)
    device = str(local_rank)
    if visible is not None:
        devices = [name.strip() for name in visible.split(",") if name.strip()]
        if local_rank >= len(devices):
            raise ConfigError(
                f"{source}={visible} has no device for the virtual local rank {local_rank}"
            )
        device = devices[local_rank]
    variables = {"LOCAL_RANK": "0", cuda: device}
    return variables | {hip: device} if source == hip else variables
