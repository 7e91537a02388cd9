"""One node's agent for Python programs, with the name and the hooks of torch's.

::

    spec = WorkerSpec(role="trainer", local_world_size=2, entrypoint="python", args=("train.py",))
    result = LocalElasticAgent(spec, environment=environ).run()

"""

from __future__ import annotations

import logging
import signal
from typing import Any

from elastic import _environment, _torch_bases
from elastic._data import changed
from elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, virtual_device
from elastic.agent.server.native_elastic_agent import NativeElasticAgent
from elastic.constants import (
    DEFAULT_DRAIN_TIMEOUT_S,
    DEFAULT_ROLE,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    DEFAULT_SIGNALS,
    SIGNALS_VARIABLE,
    TORCHELASTIC_ENABLE_FILE_TIMER,
    TORCHELASTIC_HEALTH_CHECK_PORT,
    TORCHELASTIC_TIMER_FILE,
    TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
)
from elastic.errors import ConfigError
from elastic.multiprocessing import signals
from elastic.multiprocessing.signals import SignalException
from elastic.torch_compat.agents.handler_elastic_agent import HandlerElasticAgent
from elastic.torch_compat.events import Event

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "LocalElasticAgent",
]

logger = logging.getLogger(__name__)

# Methods of torch's agent that call each other: the native agent calls none of them.
_HOOKS = (
    "run", "_invoke_run", "_initialize_workers", "_rendezvous", "_assign_worker_ranks",
    "_start_workers", "_monitor_workers", "_restart_workers", "_stop_workers", "_exit_barrier",
    "_shutdown", "_record_metrics", "_record_worker_events", "record_duration", "_wait",
    "_setup_local_watchdog", "_setup_healthcheck", "_set_local_rank_env", "_complete",
)  # fmt: skip

# The keyword arguments that also the agent with hooks has.
_WITH_HOOKS = ("environment", "become_subreaper", "worker_cpus", "event_log", "metrics_port")


class LocalElasticAgent(HandlerElasticAgent):
    """Runs a spec's workers on this machine until they have succeeded or failed.

    This class runs the native agent. A subclass that overrides a method which torch's agent calls,
    as ``_start_workers`` or ``_invoke_run``, runs torch's loop with these methods instead, as does
    an agent whose rendezvous handler or logs are third-party code; the workers have a
    guardian in both cases.

    ``run`` may be called once. ``request_stop`` may be called at any time, from a signal handler
    or another thread.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: Any = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_S,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
        **more: Any,
    ) -> None:
        """``more``: keyword arguments of ``NativeElasticAgent``, which describes all of them."""
        self._native_agent: NativeElasticAgent | None = None
        arguments = (
            logs_specs,
            start_method,
            exit_barrier_timeout,
            log_line_prefix_template,
            shutdown_timeout,
            health_check_server,
            uninterruptible_state_timeout,
        )
        if not self._overrides_hooks() and _is_ours(spec.rdzv_handler, logs_specs):
            self._native_agent = NativeElasticAgent(spec, *arguments, **more)
            self._worker_group = self._native_agent.get_worker_group()
            return
        if more.pop("rendezvous", None) is not None:
            raise ConfigError(
                f"{type(self).__name__} overrides methods of the agent: it needs a rendezvous "
                "handler in its spec instead of `rendezvous`"
            )
        unused = sorted(more.keys() - set(_WITH_HOOKS))
        if unused:
            logger.warning("%s have no effect with %s", ", ".join(unused), type(self).__name__)
        if spec.rdzv_handler is None:
            spec = changed(spec, rdzv_handler=_only_node(spec))
        known = {name: value for name, value in more.items() if name in _WITH_HOOKS}
        super().__init__(spec, *arguments, **known)

    @classmethod
    def _overrides_hooks(cls) -> bool:
        return any(getattr(cls, name) is not getattr(LocalElasticAgent, name) for name in _HOOKS)

    # What overridden methods of torch's agent call.

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Adds the variables for timers, whose server runs as long as the agent."""
        if self._watchdog is not None:
            for variables in envs.values():
                variables.update(self._watchdog.variables)

    def _setup_healthcheck(self) -> None:
        """Does nothing: the health check runs as long as the agent."""

    def _set_local_rank_env(
        self, worker_env: dict[str, str | None], local_rank: int, spec: WorkerSpec
    ) -> None:
        worker_env["LOCAL_RANK"] = str(local_rank)
        if spec.virtual_local_rank:
            worker_env.update(virtual_device(local_rank, self._environment))

    # The native agent, unless hooks run.

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._worker_group

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """In the main thread a signal stops the workers and then raises SignalException.

        ``TORCHELASTIC_SIGNALS_TO_HANDLE`` names the signals. A handler of the program stays.
        """
        names, native = _environment.get(SIGNALS_VARIABLE, DEFAULT_SIGNALS), self._native_agent
        stop = self.request_stop
        with signals.stopping(names, SIGNALS_VARIABLE, stop, keeps_own=True) as received:
            result = super().run(role) if native is None else native.run(role)
        if received:
            _torch_bases.update()
            first = signal.Signals(received[0])
            raise SignalException(f"the agent received {first.name} and stopped its workers", first)
        return result

    def request_stop(self, signum: int) -> None:
        """Stops the workers with a signal and the shutdown timeout.

        A second call shortens the timeout to five seconds, a third one kills the workers. After
        ``run`` has received the result, a call has no effect.
        """
        if self._native_agent is None:
            super().request_stop(signum)
        else:
            self._native_agent.request_stop(signum)

    def request_drain(
        self, signum: int = signal.SIGTERM, timeout: float = DEFAULT_DRAIN_TIMEOUT_S
    ) -> None:
        """Stops all ranks of the job at one step, because of a signal (docs/preemption.md).

        The result then has the exit code ``_C.EXIT_STOPPED_AT_STEP``. If the ranks have not stopped
        after ``timeout`` seconds, the workers of all nodes are stopped by SIGTERM. An agent with
        hooks stops its workers at once.
        """
        if self._native_agent is None:
            super().request_drain(signum, timeout)
        else:
            self._native_agent.request_drain(signum, timeout)

    def forward(self, signum: int) -> None:
        if self._native_agent is None:
            super().forward(signum)
        else:
            self._native_agent.forward(signum)

    def _event(self, state: str, error: str | None) -> Event:
        native = self._native_agent
        return super()._event(state, error) if native is None else native.event(state, error)


def _is_ours(handler: object, logs: object) -> bool:
    """Whether the native agent can use both."""
    from elastic.multiprocessing.logs import LogOptions
    from elastic.multiprocessing.logs_specs import LogsSpecs, is_default
    from elastic.torch_compat.rendezvous.handlers import DynamicRendezvousHandler

    is_plug_in = isinstance(logs, LogsSpecs) and not is_default(logs)
    knows_logs = logs is None or isinstance(logs, LogOptions) or hasattr(logs, "options")
    is_known = handler is None or isinstance(handler, DynamicRendezvousHandler)
    return is_known and knows_logs and not is_plug_in


def _only_node(spec: WorkerSpec) -> Any:
    from elastic.torch_compat.rendezvous.api import RendezvousParameters
    from elastic.torch_compat.rendezvous.registry import get_rendezvous_handler

    address = spec.master_addr or spec.local_addr
    return get_rendezvous_handler(
        RendezvousParameters("c10d", "localhost:0", spec.job_id(), 1, 1, address)
    )
