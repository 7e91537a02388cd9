"""Records an agent's transitions: in the event log, as torch's events and metrics, for Prometheus.

Loaded only if something receives the records, so that other launchers start as fast as before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable
from errno import ENXIO
from typing import Any

from elastic import _C, _files
from elastic._plug_in import plug_in
from elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, own_failure
from elastic.agent.server.timeline import AgentEvent, Sink, Timeline
from elastic.errors import ConfigError
from elastic.text import between
from elastic.torch_compat.agents.torch_records import TorchSink

logger = logging.getLogger(__name__)

SCHEMA = 1  # of the event log
CLOCK_STEP_S = 0.01
OPEN_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 2.0  # for a file system that does not respond, at the end of the job

_KINDS = _C.AgentEvent.Kind


class Recorder:
    """Passes the transitions of one agent to all sinks."""

    def __init__(
        self,
        spec: WorkerSpec,
        event_log: str = "",
        metrics_port: int = 0,
        *,
        has_torch_records: bool = True,
        open_timeout: float = OPEN_TIMEOUT_S,
        is_stopped: Callable[[], bool] | None = None,
    ) -> None:
        """``open_timeout``, ``is_stopped``: as for EventLog."""
        self._timeline = Timeline()
        self._sinks: list[Sink] = []
        if event_log:
            self._sinks.append(EventLogSink(spec, event_log, open_timeout, is_stopped))
        if metrics_port:
            from elastic.agent.server.prometheus import PrometheusSink

            self._sinks.append(PrometheusSink(spec, metrics_port))
        if has_torch_records:
            self._sinks.append(TorchSink(spec))

    def observe(self, event: AgentEvent, group: WorkerGroup) -> None:
        incident = self._timeline.update(event)
        self._for_each(lambda sink: sink.observe(event, group))
        if incident is not None:
            self._for_each(lambda sink: sink.incident(incident))
        step = self._timeline.first_step(event)
        if step is not None:
            self._for_each(lambda sink: sink.first_step(step))

    def conclude(self, result: RunResult, group: WorkerGroup) -> None:
        self._for_each(lambda sink: sink.conclude(result, group))

    def close(self) -> None:
        self._for_each(lambda sink: sink.close())

    def _for_each(self, call: Callable[[Sink], None]) -> None:
        """A sink that raises receives no more records."""
        for sink in tuple(self._sinks):
            failed: set[str] = set()
            with plug_in(f"recording by {type(sink).__name__}", failed):
                call(sink)
            if failed:
                self._sinks.remove(sink)


class EventLog:
    """Appends one JSON object per line to a file: one for each transition (docs/observing.md).

    Several agents may append to one file of a local file system: each line is written by one call.
    An error while the job runs is logged once and does not affect the job.
    """

    def __init__(
        self,
        path: str,
        *,
        open_timeout: float = OPEN_TIMEOUT_S,
        is_stopped: Callable[[], bool] | None = None,
        **common: Any,
    ) -> None:
        """``common``: fields of every line. Raises ConfigError if the file cannot be opened.

        ``is_stopped``: ends the wait for a file system that does not respond.
        """
        self._path = os.path.abspath(path)
        self._common = common
        try:
            self._file = _files.within(open_timeout, self._open, is_stopped)
        except OSError as error:
            why = "no process reads this pipe" if error.errno == ENXIO else error.strerror or error
            raise ConfigError(f"cannot write the event log {path}: {why}") from error
        self._has_failed = False
        self._writer = _files.Writer(self._append)
        self._offset = 0.0  # the wall clock minus the monotonic clock

    def _wall_time(self, at: float) -> float:
        """Keeps distances exact, unless the wall clock was set."""
        offset = time.time() - time.monotonic()
        if abs(offset - self._offset) > CLOCK_STEP_S:
            self._offset = offset
        return self._offset + at

    def write(self, event: str, at: float | None = None, **fields: Any) -> None:
        """``at``: the time of the event on the monotonic clock; None: now."""
        when = self._wall_time(time.monotonic() if at is None else at)
        line = {"schema": SCHEMA, "event": event, "time": round(when, 6)} | self._common | fields
        if not self._writer.put(json.dumps(line, default=str).encode() + b"\n"):
            self._note("its file system does not respond")

    def _open(self) -> int:
        # A pipe that is full, or has no reader, must not block the agent.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, 0o644)

    def _follow_rotation(self) -> None:
        """Opens the file again after logrotate, or a person, has renamed or removed it."""
        opened = os.fstat(self._file)
        if not stat.S_ISREG(opened.st_mode):
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(opened, os.stat(self._path)):
                return
        new = self._open()
        os.close(self._file)
        self._file = new

    def _append(self, data: bytes) -> None:
        try:
            self._follow_rotation()
            if os.write(self._file, data) != len(data):
                self._note("no space left")
        except OSError as error:
            self._note(str(error.strerror))

    def _note(self, problem: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("cannot write the event log %s: %s", self._path, problem)

    def close(self) -> None:
        """Waits for a file system that does not respond at most two seconds."""
        if self._writer.flush(CLOSE_TIMEOUT_S):
            os.close(self._file)
        else:
            self._note("its file system does not respond")


# Transitions of which the log has the sentence alone.
_SENTENCES = {
    _KINDS.NOTICE: "notice",
    _KINDS.PROGRESS: "waiting",
    _KINDS.STOPPING: "stopping",
    _KINDS.HANG: "hang",
    _KINDS.STRAGGLING: "straggling",
    _KINDS.STALLED: "stalled",
    _KINDS.STALL_OVER: "stall_over",
    _KINDS.MISMATCH: "mismatch",
    _KINDS.DRAIN: "drain",
    _KINDS.HOST_EXCLUDED: "host_excluded",
    _KINDS.HOST_READMITTED: "host_readmitted",
}


class EventLogSink(Sink):
    """The event log's lines; docs/observing.md has their schema."""

    def __init__(
        self,
        spec: WorkerSpec,
        path: str,
        open_timeout: float,
        is_stopped: Callable[[], bool] | None,
    ) -> None:
        self._log = EventLog(
            path,
            open_timeout=open_timeout,
            is_stopped=is_stopped,
            job=spec.job_id(),
            role=spec.role,
            host=os.uname().nodename,
            agent=os.getpid(),
        )
        self._begun = time.monotonic()
        self._round: int | None = None
        self._waiting_since: float | None = self._begun
        self._starting_at: float | None = None
        self._log.write(
            "agent_started",
            local_world_size=spec.local_world_size,
            max_restarts=spec.max_restarts,
            entrypoint=spec.get_entrypoint_name(),
            version=_C.__version__,
        )

    def observe(self, event: AgentEvent, group: WorkerGroup) -> None:
        if event.kind in _SENTENCES:
            self._write(_SENTENCES[event.kind], event, message=event.message)
        elif event.kind == _KINDS.ROUND_STARTING:
            self._round_starting(event)
        elif event.kind == _KINDS.WORKER_STARTED:
            self._write("worker_started", event, **self._worker(event, group))
        elif event.kind == _KINDS.WORKERS_RUNNING:
            took = between(self._starting_at, event.at)
            self._write("workers_running", event, durations={"start": took})
        elif event.kind == _KINDS.WORKER_EXITED:
            self._worker_exited(event, group)
        elif event.kind == _KINDS.NODE_CHECK and (check := event.check) is not None:
            found = {"check": check.name, "verdict": check.verdict, "reason": check.reason}
            self._write("node_check", event, **found)
        elif event.kind == _KINDS.COORDINATOR_MOVED and (moved := event.moved) is not None:
            self._write(
                "coordinator_moved",
                event,
                coordinator=_coordinator(event.coordinator),
                **{"from": moved.origin},
                cause=moved.cause,
                message=event.message,
                durations={"move": between(0.0, moved.seconds)},
            )
        elif event.kind == _KINDS.RESTARTING:
            self._waiting_since = event.ended.stopped if event.ended else event.at
            cause = event.ended.cause if event.ended else ""
            self._write("restarting", event, cause=cause, message=event.message)

    def _round_starting(self, event: AgentEvent) -> None:
        info = event.round
        self._round = info.round
        self._starting_at = event.at
        self._write(
            "round_starting",
            event,
            generation=info.generation,
            restart_count=info.restart_count,
            membership_changes=info.membership_changes,
            group_rank=info.group_rank,
            group_world_size=info.group_world_size,
            world_size=info.workers[0].world_size,
            ranks=[worker.rank for worker in info.workers],
            master_addr=info.master_addr,
            master_port=info.master_port,
            coordinator=_coordinator(event.coordinator),
            log_dir=event.log_dir or None,
            durations={"rendezvous": between(self._waiting_since, event.at)},
        )

    def _worker_exited(self, event: AgentEvent, group: WorkerGroup) -> None:
        ended = event.exit
        self._write(
            "worker_exited",
            event,
            **self._worker(event, group),
            exit_code=ended.shell_code,
            signal=ended.signal or None,
            how=ended.describe(),
            stopped=ended.stopped_by_us,
        )

    def _worker(self, event: AgentEvent, group: WorkerGroup) -> dict[str, Any]:
        worker = group.workers[event.local_rank]
        return {
            "rank": worker.global_rank, "local_rank": event.local_rank, "pid": event.pid
        }  # fmt: skip

    def _write(self, name: str, event: AgentEvent, **fields: Any) -> None:
        self._log.write(name, event.at, round=self._round, state=event.state.name, **fields)

    def incident(self, incident: dict[str, Any]) -> None:
        fields = {key: value for key, value in incident.items() if key != "begun"}
        self._log.write("incident", incident["begun"], **fields)

    def first_step(self, step: dict[str, Any]) -> None:
        fields = {key: value for key, value in step.items() if key != "at"}
        self._log.write("first_step", step["at"], round=self._round, **fields)

    def conclude(self, result: RunResult, group: WorkerGroup) -> None:
        job = result.job
        first = next(iter(result.failures.values()), None)
        self._log.write(
            "finished",
            round=self._round,
            state=result.state.value,
            exit_code=result.exit_code,
            cause=job.cause.name.lower() if job else ("worker" if first else "none"),
            **_failure_class(result),
            rank=job.rank if job and job.rank >= 0 else (first.rank if first else None),
            node=(job.node or None) if job else None,
            message=result.message,
            restart_count=result.restart_count,
            durations={"total": between(self._begun, time.monotonic())},
        )

    def close(self) -> None:
        self._log.close()


def _failure_class(result: RunResult) -> dict[str, Any]:
    """Class and cause of the job's first failure; both null if no worker failed."""
    known = own_failure(result) or (result.job.evidence if result.job else None)
    if known is None:
        return {"failure_class": None, "failure_cause": None}
    return {"failure_class": known.failure_class, "failure_cause": known.cause}


def _coordinator(info: _C.CoordinatorInfo | None) -> dict[str, Any] | None:
    if info is None:
        return None
    return {
        "address": info.address or None,
        "lineage": info.lineage or None,
        "term": info.term,
        "voters": info.voters,
    }
