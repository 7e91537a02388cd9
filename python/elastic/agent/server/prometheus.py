"""Metrics of one agent for Prometheus, with the client library of the extra ``prometheus``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic import _C
from elastic.agent.server.timeline import AgentEvent, Sink
from elastic.errors import ConfigError
from elastic.torch_compat.agents.health_check_server import pause_after_errors

if TYPE_CHECKING:
    from elastic.agent.server.api import WorkerGroup, WorkerSpec

_KINDS = _C.AgentEvent.Kind
_STATES = tuple(_C.AgentState.__members__)
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)


class PrometheusSink(Sink):
    """Serves ``/metrics`` on a port, from the client library's own thread, until ``close``."""

    def __init__(self, spec: WorkerSpec, port: int) -> None:
        try:
            import prometheus_client as client
        except ImportError as error:
            raise ConfigError(
                "--metrics-port needs the package prometheus_client: "
                "pip install 'elastic-launch[prometheus]'"
            ) from error
        registry = client.CollectorRegistry()
        names = ("job", "role")
        values = (spec.job_id(), spec.role)

        def gauge(name: str, text: str, *more: str) -> Any:
            return client.Gauge(f"elastic_{name}", text, (*names, *more), registry=registry)

        self._values = values
        self._state = gauge("agent_state", "1 for the agent's current state.", "state")
        self._round = gauge("round", "The current round, from 0.").labels(*values)
        self._world = gauge("world_size", "Workers of the round.").labels(*values)
        self._nodes = gauge("nodes", "Nodes of the round.").labels(*values)
        self._rank = gauge("node_rank", "This node's rank in the round.").labels(*values)
        self._restarts = gauge("restarts", "Restarts charged to the job's budget.").labels(*values)
        self._running = gauge("workers_running", "Running workers of this node.").labels(*values)
        self._failures = client.Counter(
            "elastic_worker_failures", "Workers of this node that failed.", names, registry=registry
        ).labels(*values)
        self._incidents = client.Counter(
            "elastic_incidents",
            "Rounds that ended and were followed by another round.",
            (*names, "cause"),
            registry=registry,
        )
        self._phases = client.Histogram(
            "elastic_incident_seconds",
            "Duration of an incident's phases on this node.",
            (*names, "phase"),
            registry=registry,
            buckets=_BUCKETS,
        )
        try:
            self._server, self._thread = client.start_http_server(port, registry=registry)
        except OSError as error:
            raise ConfigError(f"--metrics-port {port}: {error.strerror}") from error
        pause_after_errors(self._server)

    def observe(self, event: AgentEvent, group: WorkerGroup) -> None:
        for state in _STATES:
            self._state.labels(*self._values, state).set(state == event.state.name)
        if event.kind == _KINDS.ROUND_STARTING:
            info = event.round
            self._round.set(info.round)
            self._restarts.set(info.restart_count)
            self._nodes.set(info.group_world_size)
            self._rank.set(info.group_rank)
            self._world.set(info.workers[0].world_size)
            self._running.set(0)
        elif event.kind == _KINDS.WORKER_STARTED:
            self._running.inc()
        elif event.kind == _KINDS.WORKER_EXITED:
            if not event.exit.stage:  # it was started
                self._running.dec()
            if event.exit.shell_code != 0 and not event.exit.stopped_by_us:
                self._failures.inc()

    def incident(self, incident: dict[str, Any]) -> None:
        self._incidents.labels(*self._values, incident["cause"]).inc()
        self._observe_phases(incident["phases"])

    def first_step(self, step: dict[str, Any]) -> None:
        if step["incident"] is not None:
            self._observe_phases(step["phases"])

    def _observe_phases(self, phases: dict[str, float | None]) -> None:
        for phase, seconds in phases.items():
            if seconds is not None:
                self._phases.labels(*self._values, phase).observe(seconds)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
