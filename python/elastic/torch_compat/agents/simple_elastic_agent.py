"""An agent as a small Python loop over a rendezvous handler, for subclasses and plug-ins.

A subclass starts, monitors and stops workers in four methods; the workers may run anywhere, and
their ids are opaque. The native agent does not use this loop: it sends a failure to all nodes,
whereas here the other nodes only detect that the handler reports waiting nodes.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elastic import _C
from elastic._data import changed
from elastic._plug_in import plug_in
from elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from elastic.constants import DEFAULT_ROLE as DEFAULT_ROLE
from elastic.constants import DEFAULT_SHUTDOWN_TIMEOUT_S, HANDLER_EXIT_BARRIER_S
from elastic.errors import ConfigError, ElasticError, NodeFault, fault_of
from elastic.multiprocessing.signals import SignalException
from elastic.torch_compat.agents.torch_records import TorchRecords
from elastic.torch_compat.events import Event
from elastic.torch_compat.metrics import prof
from elastic.torch_compat.rendezvous.api import RendezvousGracefulExitError

logger = logging.getLogger(__name__)


_ROLE_KEY = "torchelastic/role_info/"
_RANKS_KEY = "torchelastic/assigned_ranks/"
_BARRIER_KEY = "torchelastic/agent/terminal_state"


class ElasticAgent(ABC):
    """Runs the workers of one node."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Runs the workers until they have ended, with restarts."""

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The workers; do not modify."""


class SimpleElasticAgent(ElasticAgent):
    """The loop. ``max_restarts`` is a budget of this agent."""

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float = HANDLER_EXIT_BARRIER_S,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_S,
    ) -> None:
        if spec.rdzv_handler is None:
            raise ConfigError("the spec has no rendezvous handler")
        if spec.local_world_size < 1:
            raise ConfigError(f"local_world_size is {spec.local_world_size}: expected 1 or more")
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._store: Any = None
        self._torch_records = TorchRecords(spec)
        self._total_execution_time = 0  # seconds, after `run`
        self._in_exit_barrier = False
        self._is_stopping = False  # at the end of `run`
        self._latest = RunResult(WorkerState.INIT)  # of _monitor_workers()

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Starts the workers of a round and returns their ids by local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stops all workers and returns when they have ended."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """The state of the workers now: HEALTHY, SUCCEEDED, FAILED or UNHEALTHY."""

    @abstractmethod
    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        """Stops the remaining workers at the end of ``run``, and releases the agent's resources."""

    def _wait(self, seconds: float) -> None:
        """Waits between two checks of the workers; may return early."""
        threading.Event().wait(seconds)

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._worker_group

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        begun = time.monotonic()
        received: signal.Signals | None = None
        try:
            result = self._complete(self._invoke_run(role))
            self._record_metrics(result)
            self._record_worker_events(result)
            failure = None if result.state is WorkerState.SUCCEEDED else result.message
            self._torch_records.ended(self._worker_group, failure)
            return result
        except _classes(RendezvousGracefulExitError, "rendezvous.api") as error:
            logger.info("the rendezvous has ended for this node: %s", error)
            return RunResult(WorkerState.SUCCEEDED, run_id=self._worker_group.spec.job_id())
        except _classes(SignalException, "multiprocessing.api") as error:
            received = error.sigval
            raise
        except Exception as error:
            self._torch_records.ended(self._worker_group, str(error) or type(error).__name__)
            raise
        finally:
            self._is_stopping = True
            if received is None:  # subclasses may have only the arguments that torch passes
                self._shutdown(timeout=self._shutdown_timeout)
            else:
                self._shutdown(received, timeout=self._shutdown_timeout)
            self._total_execution_time = int(time.monotonic() - begun)

    def _ended_by(self, error: Exception) -> RunResult | None:
        """The result after a signal or a fault of this node; None for any other error."""
        spec = self._worker_group.spec
        if isinstance(error, SignalException):
            state, code = WorkerState.STOPPED, 128 + error.sigval
            text = f"stopped by {error.sigval.name}"
        elif (fault := fault_of(error)) is not None:
            state, code, text = WorkerState.UNKNOWN, fault.exit_code, str(fault)
        else:
            return None
        return RunResult(
            state,
            failures=self._latest.failures,
            exit_code=code,
            message=text,
            run_id=spec.job_id(),
            restart_count=self._restart_count(),
            max_restarts=spec.max_restarts,
        )

    def get_event_failed(self) -> Event:
        """The event FAILED of this agent, with the exception that is being handled."""
        return self._event("FAILED", traceback.format_exc())

    def get_event_succeeded(self) -> Event:
        """The event SUCCEEDED of this agent."""
        return self._event("SUCCEEDED", None)

    def _event(self, state: str, error: str | None) -> Event:
        total = self._total_execution_time
        return self._torch_records.event(
            state, "AGENT", self._worker_group, total_run_time=total, raw_error=error
        )

    def _record_metrics(self, group_results: RunResult) -> None:
        self._torch_records.outcome(group_results)

    def _record_worker_events(self, result: RunResult) -> None:
        self._torch_records.workers_ended(result, self._worker_group)

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Records an event of the agent with the time that the block took."""
        begun = time.monotonic()
        try:
            yield
        finally:
            duration = int((time.monotonic() - begun) * 1000)
            self._torch_records.record(state, "AGENT", self._worker_group, duration_ms=duration)

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        group = self._worker_group
        spec = group.spec
        self._initialize_workers(group)
        while True:
            self._wait(spec.monitor_interval)
            result = self._latest = self._monitor_workers(group)
            group.state = result.state
            self._torch_records.state(result.state.value, self._restart_count())
            if result.state is WorkerState.SUCCEEDED:
                self._exit_barrier()
                return result
            if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                if self._remaining_restarts == 0:
                    self._stop_workers(group)
                    group.state = WorkerState.FAILED
                    return result
                self._remaining_restarts -= 1
                left = _C.describe_restarts_left(self._restart_count(), spec.max_restarts)
                logger.warning("workers failed; restarting, %s", left)
                self._restart_workers(group)
            elif result.state is not WorkerState.HEALTHY:
                raise ElasticError(f"the workers are in the state {result.state.value}")
            elif spec.rdzv_handler.num_nodes_waiting() > 0:
                logger.info("nodes are waiting; restarting to let them join")
                self._restart_workers(group)

    def _complete(self, result: RunResult) -> RunResult:
        spec = self._worker_group.spec
        first = min(result.failures.values(), key=lambda one: one.timestamp, default=None)
        code = 0 if result.state is WorkerState.SUCCEEDED else 1
        message = ""
        if first is not None:
            code, message = first.shell_code, first.describe()
        return changed(
            result,
            exit_code=code,
            message=message,
            run_id=spec.job_id(),
            restart_count=self._restart_count(),
            max_restarts=spec.max_restarts,
        )

    def _restart_count(self) -> int:
        return self._worker_group.spec.max_restarts - self._remaining_restarts

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        self._rendezvous(worker_group)
        logger.info(
            "starting workers as node %s of %s",
            worker_group.group_rank,
            worker_group.group_world_size,
        )
        ids = self._start_workers(worker_group)
        for local_rank, worker_id in ids.items():
            worker_group.workers[local_rank].id = worker_id
        worker_group.state = WorkerState.HEALTHY
        for worker in worker_group.workers:
            self._torch_records.started(worker_group, worker)

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        spec = worker_group.spec
        begun = time.monotonic()
        info = spec.rdzv_handler.next_rendezvous()
        self._store = worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        where = info.bootstrap_store_info
        worker_group.master_addr = spec.master_addr or where.master_addr
        worker_group.master_port = spec.master_port or where.master_port
        worker_group.workers = self._assign_worker_ranks(
            info.store, info.rank, info.world_size, spec
        )
        self._torch_records.rendezvous(worker_group, time.monotonic() - begun)

    @prof
    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Ranks by node rank; nodes may differ in workers and roles. Node 0 computes them."""
        mine = {
            "role": spec.role, "rank": group_rank, "local_world_size": spec.local_world_size
        }  # fmt: skip
        store.set(f"{_ROLE_KEY}{group_rank}", json.dumps(mine))
        if group_rank == 0:
            nodes = [
                json.loads(bytes(store.get(f"{_ROLE_KEY}{node}")))
                for node in range(group_world_size)
            ]
            for node, ranks in enumerate(_ranks(nodes)):
                store.set(f"{_RANKS_KEY}{node}", json.dumps(ranks))
        base, world, role_base, role_world = json.loads(
            bytes(store.get(f"{_RANKS_KEY}{group_rank}"))
        )
        return [
            Worker(
                local_rank=rank,
                global_rank=base + rank,
                role_rank=role_base + rank,
                world_size=world,
                role_world_size=role_world,
            )
            for rank in range(spec.local_world_size)
        ]

    def _exit_barrier(self) -> None:
        """Waits until all nodes of the round have succeeded, or for the exit barrier timeout."""
        from datetime import timedelta

        group = self._worker_group
        self._in_exit_barrier = True
        with plug_in("exit barrier, the wait for the workers of other nodes,"):
            arrived = self._store.add(f"{_BARRIER_KEY}/num_members", 1)
            last = f"{_BARRIER_KEY}/last_member"
            if arrived == group.group_world_size:
                self._store.set(last, "1")
            self._store.wait([last], timedelta(seconds=self._exit_barrier_timeout))
        self._in_exit_barrier = False


@contextmanager
def log_files() -> Iterator[None]:
    """Converts an error of the block, which creates log files, to a fault of this node."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread to follow a file
        path, why = (getattr(error, name, None) for name in ("filename", "strerror"))
        text = f"{path}: {why}" if path else why or error
        raise NodeFault(
            _C.EXIT_CANNOT_LOG, f"cannot create the log files of the workers: {text}"
        ) from error


def _classes(error: Any, module: str) -> Any:
    """An exception, and torch's of the same name if a program has loaded torch elastic."""
    theirs = sys.modules.get(f"torch.distributed.elastic.{module}")
    other = getattr(theirs, error.__name__, None)
    return error if other is None else (error, other)


def _ranks(nodes: list[dict[str, Any]]) -> list[list[int]]:
    """For each node its first rank, the world size, and the same within its role."""
    world = sum(node["local_world_size"] for node in nodes)
    role_worlds: dict[str, int] = {}
    for node in nodes:
        role = node["role"]
        role_worlds[role] = role_worlds.get(role, 0) + node["local_world_size"]
    found, base = [], 0
    role_bases = dict.fromkeys(role_worlds, 0)
    for node in nodes:
        role = node["role"]
        found.append([base, world, role_bases[role], role_worlds[role]])
        base += node["local_world_size"]
        role_bases[role] += node["local_world_size"]
    return found
