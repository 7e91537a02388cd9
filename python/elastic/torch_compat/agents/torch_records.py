"""torch's events and metrics of an agent, by their names.

States are recorded when they change, because nothing here polls. ``timestamp`` is set, and the
worker's fields are plain values.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from elastic import _C
from elastic._plug_in import plug_in
from elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from elastic.agent.server.timeline import AgentEvent, Sink
from elastic.torch_compat import events, metrics

_KINDS = _C.AgentEvent.Kind


class TorchRecords:
    """The records of one agent of any class."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._begun = time.monotonic()
        self._state = ""
        self.restarts = 0
        self._failed: set[str] = set()  # handlers of the program that are not called again

    def state(self, name: str, restarts: int) -> None:
        """The state of the workers, and the restarts so far."""
        self.restarts = restarts
        if name == self._state:
            return
        self._state = name
        role = self._spec.role
        self._put(f"workers.{role}.remaining_restarts", self._left())
        self._put(f"workers.{role}.{name.lower()}", 1)

    def _put(self, name: str, value: int) -> None:
        self._call("metric handler", lambda: metrics.put_metric(name, value))

    def _call(self, handler: str, call: Callable[[], None]) -> None:
        """Calls a handler of the program, unless it has failed before."""
        if handler not in self._failed:
            with plug_in(handler, self._failed):
                call()

    def _left(self) -> int:
        return max(self._spec.max_restarts - self.restarts, 0)

    def rendezvous(self, group: WorkerGroup, seconds: float) -> None:
        """A round was formed, and the ranks were assigned with it."""
        self.record("RENDEZVOUS", "AGENT", group, duration_ms=int(seconds * 1000))
        self.record("ASSIGN_WORKER_RANKS", "AGENT", group, duration_ms=0)

    def started(self, group: WorkerGroup, worker: Worker) -> None:
        self.record("START", "WORKER", group, worker)

    def timer(self, name: str, request: Any, group: WorkerGroup) -> None:
        """An event of the timer server, and its request, if there is one."""
        inner: dict[str, str] = {"watchdog_event": name}
        if request is not None:
            for field in ("worker_pid", "scope_id", "expiration_time", "signal"):
                inner[field] = str(getattr(request, field))

        def record() -> None:
            event = self.event("RUNNING", "AGENT", group)
            event.name = name
            event.metadata["metadata"] = json.dumps(inner)
            events.record(event, self._spec.event_log_handler)

        self._call("event handler", record)

    def duration(self, name: str, seconds: float, is_success: bool = True) -> None:
        """As the decorator ``elastic.metrics.prof`` records it."""
        self._put(f"{name}.{'success' if is_success else 'failure'}", 1)
        self._put(f"{name}.duration.ms", int(seconds * 1000))

    def outcome(self, result: RunResult) -> None:
        """The metrics of a run."""
        spec, role = self._spec, self._spec.role
        is_success = result.state is WorkerState.SUCCEEDED
        retried = self.restarts > 0
        self._put(f"workers.{role}.run_total", 1)
        for outcome in ("success", "failed"):
            for with_retries in (True, False):
                is_it = (outcome == "success") == is_success and with_retries == retried
                kind = "with" if with_retries else "no"
                self._put(f"workers.{role}.run_{outcome}_{kind}_retries", int(is_it))
        share = 100 * (self._left() + 1) / (spec.max_restarts + 1)
        self._put(f"workers.{role}.flakiness", int(100 - share) if is_success else 100)

    def workers_ended(self, result: RunResult, group: WorkerGroup) -> None:
        """The events of a run's workers."""
        is_success = result.state is WorkerState.SUCCEEDED
        total = int(time.monotonic() - self._begun)
        for worker in group.workers:
            failure = result.failures.get(worker.global_rank)
            state = "SUCCEEDED" if is_success else "FAILED" if failure else "TERMINATED"
            self.record(
                state,
                "WORKER",
                group,
                worker,
                total_run_time=total,
                raw_error=failure.message if failure else None,
                exit_code=failure.shell_code if failure else 0 if is_success else None,
            )

    def ended(self, group: WorkerGroup, error: str | None) -> None:
        """The agent ended: with success, or with an error."""
        total = int(time.monotonic() - self._begun)
        state = "SUCCEEDED" if error is None else "FAILED"
        self.record(state, "AGENT", group, total_run_time=total, raw_error=error)

    def record(self, state: str, source: str, group: WorkerGroup, *args: Any, **more: Any) -> None:
        handler = self._spec.event_log_handler
        self._call(
            "event handler",
            lambda: events.record(self.event(state, source, group, *args, **more), handler),
        )

    def event(
        self,
        state: str,
        source: str,
        group: WorkerGroup,
        worker: Worker | None = None,
        *,
        total_run_time: int = 0,
        raw_error: str | None = None,
        duration_ms: int | None = None,
        exit_code: int | None = None,
    ) -> events.Event:
        spec = self._spec
        inner: dict[str, Any] = {
            "group_world_size": group.group_world_size,
            "entry_point": spec.get_entrypoint_name(),
        }
        if worker is not None:
            inner |= {
                "local_rank": worker.local_rank,
                "role_rank": worker.role_rank,
                "role_world_size": worker.role_world_size,
                "exit_code": exit_code,
                "worker_pid": worker.id,
            }
        metadata: dict[str, Any] = {
            "run_id": spec.job_id(),
            "global_rank": None if worker is None else worker.global_rank,
            "group_rank": group.group_rank,
            "worker_id": None if worker is None else str(worker.id),
            "role": spec.role,
            "hostname": os.uname().nodename,
            "state": state,
            "total_run_time": total_run_time,
            "rdzv_backend": _backend(spec),
            "raw_error": raw_error,
            "metadata": json.dumps(inner),
            "agent_restarts": self.restarts,
        }
        if duration_ms is not None:
            metadata["duration_ms"] = duration_ms
        name = f"torchelastic.worker.status.{state}"
        return events.Event(name, events.EventSource(source), int(time.time() * 1000), metadata)


class TorchSink(TorchRecords, Sink):
    """The records of the native agent, from its events."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self._since = self._begun  # of the rendezvous
        self._starting_at: float | None = None

    def observe(self, event: AgentEvent, group: WorkerGroup) -> None:
        restarts = event.round.restart_count if event.round else 0
        self.state(event.state.name, restarts)
        if event.kind == _KINDS.ROUND_STARTING:
            self._starting_at = event.at
            self.duration("SimpleElasticAgent._rendezvous", event.at - self._since)
            self.rendezvous(group, event.at - self._since)
            self._joined(group)
        elif event.kind == _KINDS.WORKER_STARTED:
            self.started(group, group.workers[event.local_rank])
        elif event.kind == _KINDS.WORKERS_RUNNING:
            if self._starting_at is not None:
                self.duration("LocalElasticAgent._start_workers", event.at - self._starting_at)
            self.duration("SimpleElasticAgent._initialize_workers", event.at - self._since)
        elif event.kind == _KINDS.RESTARTING:
            ended = event.ended
            stopped = ended.stopped if ended else None
            if ended and ended.ordered is not None and stopped is not None:
                self.duration("LocalElasticAgent._stop_workers", stopped - ended.ordered)
                self.duration("SimpleElasticAgent._restart_workers", event.at - ended.ordered)
            self._since = event.at if stopped is None else stopped

    def _joined(self, group: WorkerGroup) -> None:
        """The membership is native; this is the record of torch's handler."""
        self._call(
            "event handler",
            lambda: events.construct_and_record_rdzv_event(
                self._spec.job_id(),
                f"joined a round as rank {group.group_rank} of {group.group_world_size}",
                events.NodeState.RUNNING,
                name="TorchSink.next_rendezvous",
                master_endpoint=f"{group.master_addr}:{group.master_port}",
                rank=group.group_rank,
            ),
        )

    def conclude(self, result: RunResult, group: WorkerGroup) -> None:
        is_success = result.state is WorkerState.SUCCEEDED
        self.duration("SimpleElasticAgent.run", time.monotonic() - self._begun, is_success)
        self.outcome(result)
        self.workers_ended(result, group)
        self.ended(group, None if is_success else result.message)


def _backend(spec: WorkerSpec) -> str:
    return str(spec.rdzv_handler.get_backend()) if spec.rdzv_handler is not None else "elastic"
