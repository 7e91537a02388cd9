"""A small subclass of the agent for subclasses, which starts no process."""

from __future__ import annotations

import signal
from typing import Any

from elastic.agent.server import RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec, WorkerState
from elastic.multiprocessing import ProcessFailure


class RemoteAgent(SimpleElasticAgent):
    """Workers on two hosts, with ids HOST:PORT, as in a subclass for a scheduler."""

    def __init__(self, spec: WorkerSpec, states: list[WorkerState]) -> None:
        super().__init__(spec, exit_barrier_timeout=10)
        self.calls: list[str] = []
        self._states = states

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.calls.append("start")
        return {w.local_rank: f"host{w.local_rank % 2}:{9000 + w.global_rank}"
                for w in worker_group.workers}  # fmt: skip

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.calls.append("stop")

    def _wait(self, seconds: float) -> None:
        """Returns at once: the workers reach the next state of the list."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        state = self._states.pop(0)
        has_failed = state is WorkerState.FAILED
        return RunResult(state, failures={1: ProcessFailure(1, 0, 9)} if has_failed else {})

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        self.calls.append("shutdown")
