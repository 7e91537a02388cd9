"""Event log and metrics of the agent for rendezvous handlers of other distributions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from elastic import _C
from elastic.agent.server.api import RunResult, WorkerGroup
from elastic.agent.server.timeline import Transition
from elastic.multiprocessing.errors.evidence import ProcessFailure

if TYPE_CHECKING:
    from elastic.agent.server.recording import Recorder

_KINDS = _C.AgentEvent.Kind


class HandlerRecords:
    """Converts the agent's calls to the transitions that the native agent reports.

    Nothing is recorded before ``open``.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._recorder: Recorder | None = None
        self._group = group
        self._state = _C.AgentState.INIT
        self._ended: SimpleNamespace | None = None  # the fields of _C.AgentRoundEnd
        self._ordered: float | None = None
        self._reason = ""
        self._rounds = 0
        self._round: SimpleNamespace | None = None  # the fields of _C.RoundInfo

    def open(self, event_log: str, metrics_port: int) -> None:
        """``event_log``: "", and ``metrics_port``: 0: there is none."""
        if not event_log and not metrics_port:
            return
        from elastic.agent.server.recording import Recorder

        # Its base class, SimpleElasticAgent, writes the records for torch.
        spec = self._group.spec
        self._recorder = Recorder(spec, event_log, metrics_port, has_torch_records=False)

    def round_starting(self, restart_count: int, log_dir: str) -> None:
        if self._ended is not None:
            self._state = _C.AgentState.INIT
            self._observe(
                _KINDS.RESTARTING, message=f"{self._reason}; restarting", ended=self._ended
            )
            self._ended = None
        group = self._group
        self._round = SimpleNamespace(
            round=self._rounds,
            generation=self._rounds,
            restart_count=restart_count,
            membership_changes=self._rounds - restart_count,
            group_rank=group.group_rank,
            group_world_size=group.group_world_size,
            master_addr=group.master_addr,
            master_port=group.master_port,
            workers=[
                SimpleNamespace(rank=worker.global_rank, world_size=worker.world_size)
                for worker in group.workers
            ],
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
        self._ended = SimpleNamespace(
            cause="worker_failed" if failures else "nodes_waiting",
            ordered=self._ordered,
            stopped=time.monotonic(),
            kept=False,
            failures=[  # the fields of _C.WorkerFailure
                SimpleNamespace(
                    local_rank=one.local_rank, pid=one.pid, exit_code=one.shell_code, evidence=one
                )
                for one in failures
            ],
        )

    def conclude(self, result: RunResult) -> RunResult:
        if self._recorder is not None:
            self._state = _C.AgentState.__members__[result.state.value]
            self._observe(_KINDS.FINISHED)
            self._recorder.conclude(result, self._group)
        return result

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    def _observe(self, kind: _C.AgentEvent.Kind, at: float | None = None, **fields: Any) -> None:
        if self._recorder is None:
            return
        event = Transition(
            kind, time.monotonic() if at is None else at, self._state, self._round, **fields
        )
        self._recorder.observe(event, self._group)
