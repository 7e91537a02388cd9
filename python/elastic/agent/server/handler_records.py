"""Event log and metrics of the agent for rendezvous handlers of other distributions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from elastic import _C
from elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from elastic.agent.server.recording import Recorder
from elastic.agent.server.timeline import Transition
from elastic.multiprocessing.errors.evidence import ProcessFailure

_KINDS = _C.AgentEvent.Kind


class _Rank(NamedTuple):
    rank: int
    world_size: int


class _Round(NamedTuple):
    """The fields of _C.RoundInfo."""

    round: int
    restart_count: int
    membership_changes: int
    group_rank: int | None
    group_world_size: int | None
    master_addr: str | None
    master_port: int | None
    workers: Sequence[_Rank]

    @property
    def generation(self) -> int:
        return self.round


class _Failure(NamedTuple):
    """The fields of _C.WorkerFailure."""

    local_rank: int
    pid: int
    exit_code: int
    evidence: ProcessFailure  # has failure_class and cause


class _RoundEnd(NamedTuple):
    """The fields of _C.AgentRoundEnd."""

    cause: str
    ordered: float
    stopped: float
    failures: Sequence[_Failure]
    kept: bool = False


class HandlerRecords:
    """Converts the agent's calls to the transitions that the native agent reports."""

    def __init__(
        self, spec: WorkerSpec, group: WorkerGroup, event_log: str, metrics_port: int
    ) -> None:
        # The torch records of this agent are those of its base class.
        self._recorder = Recorder(spec, event_log, metrics_port, has_torch_records=False)
        self._group = group
        self._state = _C.AgentState.INIT
        self._ended: _RoundEnd | None = None
        self._ordered: float | None = None
        self._reason = ""
        self._rounds = 0
        self._round: _Round | None = None

    def round_starting(self, restart_count: int, log_dir: str) -> None:
        if self._ended is not None:
            self._state = _C.AgentState.INIT
            self._observe(
                _KINDS.RESTARTING, message=f"{self._reason}; restarting", ended=self._ended
            )
            self._ended = None
        group = self._group
        self._round = _Round(
            self._rounds,
            restart_count,
            self._rounds - restart_count,
            group.group_rank,
            group.group_world_size,
            group.master_addr,
            group.master_port,
            [_Rank(worker.global_rank, worker.world_size) for worker in group.workers],
        )
        self._rounds += 1
        self._state = _C.AgentState.HEALTHY
        self._observe(_KINDS.ROUND_STARTING, log_dir=log_dir)

    def worker_started(self, local_rank: int, pid: int) -> None:
        self._observe(_KINDS.WORKER_STARTED, local_rank=local_rank, pid=pid)

    def workers_running(self) -> None:
        self._observe(_KINDS.WORKERS_RUNNING)

    def worker_exited(self, local_rank: int, pid: int, ended: _C.WorkerExit) -> None:
        self._observe(_KINDS.WORKER_EXITED, at=ended.at, local_rank=local_rank, pid=pid, exit=ended)

    def stopping(self, reason: str) -> None:
        self._state = _C.AgentState.UNHEALTHY
        self._ordered = time.monotonic()
        self._reason = reason
        self._observe(_KINDS.STOPPING, message=f"{reason}; stopping the workers")

    def stopped(self, failures: Sequence[ProcessFailure]) -> None:
        """All workers of the round have ended; ``failures``: those that ended it, the first first.

        Without one, nodes were waiting: to join, or because a worker of theirs failed.
        """
        assert self._ordered is not None
        self._ended = _RoundEnd(
            "worker_failed" if failures else "nodes_waiting",
            self._ordered,
            time.monotonic(),
            [_Failure(one.local_rank, one.pid, one.shell_code, one) for one in failures],
        )

    def conclude(self, result: RunResult) -> None:
        self._state = _C.AgentState.__members__[result.state.value]
        self._observe(_KINDS.FINISHED)
        self._recorder.conclude(result, self._group)

    def close(self) -> None:
        self._recorder.close()

    def _observe(self, kind: _C.AgentEvent.Kind, at: float | None = None, **fields: Any) -> None:
        event = Transition(
            kind, time.monotonic() if at is None else at, self._state, self._round, **fields
        )
        self._recorder.observe(event, self._group)
