"""The guardian's workers of one round, as a ``PContext`` has processes: for agents' subclasses."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from elastic._data import changed
from elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from elastic.multiprocessing.process_context import PContext, RunProcsResult


class GuardedContext:
    """The methods of a ``PContext`` that agents call."""

    def __init__(
        self,
        poll: Callable[[], RunProcsResult | None],
        handle_event: Callable[[float | None], bool],
        pids: Mapping[int, int],
        end: Callable[[signal.Signals, float], None],
    ) -> None:
        self._poll = poll
        self._handle_event = handle_event
        self._pids = pids
        self._end = end
        self.stdouts: Mapping[int, str] = {}
        self.stderrs: Mapping[int, str] = {}
        self.error_files: Mapping[int, str] = {}

    def pids(self) -> dict[int, int]:
        return dict(self._pids)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """As ``PContext.wait``, but the other workers are not stopped when one has failed."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while (result := self._poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._handle_event(left)
        return result

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        self._end(death_sig or signal.SIGTERM, timeout)


PContext.register(GuardedContext)


def by_global_rank(group: WorkerGroup, result: RunProcsResult | None) -> RunResult:
    """The state of a group for the result of its processes."""
    if result is None:
        return RunResult(WorkerState.HEALTHY)
    ranks = {one.local_rank: one.global_rank for one in group.workers}
    if result.is_failed():
        failures = {
            ranks[local_rank]: changed(failure, rank=ranks[local_rank])
            for local_rank, failure in result.failures.items()
        }
        return RunResult(WorkerState.FAILED, failures=failures)
    values = {ranks[local_rank]: value for local_rank, value in result.return_values.items()}
    return RunResult(WorkerState.SUCCEEDED, values)
