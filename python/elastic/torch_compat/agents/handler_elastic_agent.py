"""The agent for rendezvous handlers of other distributions (entry points ``torchrun.handlers``).

A native guardian supervises the workers; the handler decides the members of each round.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import Template
from typing import TYPE_CHECKING, Any

from elastic import _C, _environment
from elastic._data import changed
from elastic._plug_in import health_check
from elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    commands,
    cpu_binding,
    function_calls,
    virtual_device,
)
from elastic.agent.server.native_elastic_agent import check, watchdog
from elastic.constants import (
    DEFAULT_LINE_PREFIX,
    DEFAULT_ROLE,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    HANDLER_EXIT_BARRIER_S,
)
from elastic.errors import NodeFault
from elastic.multiprocessing.errors.evidence import NOT_AVAILABLE, ProcessFailure
from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs, destinations
from elastic.multiprocessing.signals import SignalException
from elastic.torch_compat.agents.handler_records import HandlerRecords
from elastic.torch_compat.agents.simple_elastic_agent import SimpleElasticAgent, log_files
from elastic.torch_compat.processes.process_context import PContext, RunProcsResult
from elastic.torch_compat.processes.tail_log import TailLog, tail_logs
from elastic.torch_compat.rendezvous.api import shut_down

if TYPE_CHECKING:
    from elastic.multiprocessing.calls import FunctionCalls

# Signals that a program does not send to itself: an operator or the kernel did.
_OUTER_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class GuardedContext:
    """The guardian's workers of one round, with the methods of a ``PContext`` that agents call."""

    def __init__(self, agent: HandlerElasticAgent, dest: LogsDest) -> None:
        self._agent = agent
        self.stdouts, self.stderrs = dest.stdouts, dest.stderrs
        self.error_files = dest.error_files

    def pids(self) -> dict[int, int]:
        return dict(self._agent._pids)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """As ``PContext.wait``, but the other workers are not stopped when one has failed."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while (result := self._agent._poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._agent._next(left)
        return result

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        self._agent._end_round(death_sig or signal.SIGTERM, timeout)


PContext.register(GuardedContext)


class HandlerElasticAgent(SimpleElasticAgent):
    """Runs workers on this machine in the rounds of any rendezvous handler.

    ``run`` may be called once. ``request_stop`` may be called from a signal handler.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_S,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        become_subreaper: bool = False,
        worker_cpus: Sequence[Sequence[int]] | None = None,
        event_log: str = "",
        metrics_port: int = 0,
    ) -> None:
        """``exit_barrier_timeout``: None: 300 s, as in torch."""
        check(spec, shutdown_timeout)
        if exit_barrier_timeout is None:
            exit_barrier_timeout = HANDLER_EXIT_BARRIER_S
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        self._logs_specs = logs_specs or DefaultLogsSpecs()
        self._log_line_prefix_template = log_line_prefix_template
        self._prefix = log_line_prefix_template or DEFAULT_LINE_PREFIX
        self._start_method = start_method  # for subclasses that start processes themselves
        self._rdzv_handler = spec.rdzv_handler
        self._health_check_server = health_check_server
        self._environment = _environment.of_ranks() if environment is None else environment
        state_timeout = uninterruptible_state_timeout
        self._watchdog = watchdog(self._environment, spec.job_id(), state_timeout)
        if self._watchdog is not None:
            self._environment = {**self._environment, **self._watchdog.variables}
        self._become_subreaper = become_subreaper
        self._cpus = cpu_binding(spec, self._environment, worker_cpus)
        self._calls = self._function_calls(spec)
        self._group: _C.WorkerGroup | None = None
        # The workers of the round: the guardian's, or those that a subclass has started.
        self._pcontext: Any = None
        self._round = -1  # the number of the current round, from 0
        self._exits: dict[int, _C.WorkerExit] = {}
        self._pids: dict[int, int] = {}
        self._is_running = False
        self._tails: list[TailLog] = []
        self._runner: int | None = None
        self._request: signal.Signals | None = None
        self._repetitions = 0  # of the request, while the workers are being stopped
        self._is_starting = False  # workers, which could not be stopped yet
        self._event_log, self._metrics_port = event_log, metrics_port
        self._records = HandlerRecords(self._worker_group)

    @staticmethod
    def _function_calls(spec: WorkerSpec) -> FunctionCalls | None:
        """How new processes get the function; None: they execute a program."""
        return function_calls(spec)

    def request_stop(self, signum: int) -> None:
        """Stops the workers with a signal and the shutdown timeout.

        A second call shortens the timeout to five seconds, a third one kills the workers.
        """
        if self._request is None:
            self._request = signal.Signals(signum)
        if self._is_stopping and self._group is not None:
            self._repetitions += 1
            grace = _C.REPEATED_STOP_GRACE
            if self._repetitions > 1 or self._shutdown_timeout <= grace:
                self._group.stop(signal.SIGKILL, 0.0)
            else:
                self._group.stop(signum, grace)
        elif threading.get_ident() == self._runner and not (self._is_starting or self._is_stopping):
            self._raise_request()  # also interrupts a rendezvous that blocks

    def request_drain(self, signum: int = signal.SIGTERM, timeout: float = 0.0) -> None:
        """Stops the workers at once: a rendezvous handler has no coordinator of a common step."""
        self.request_stop(signal.SIGTERM)

    def forward(self, signum: int) -> None:
        """Delivers a signal to the running workers, not to their children."""
        if self._group is not None and self._is_running:
            self._group.forward(signum, _C.SignalScope.LEADER)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Defers requests to the end of the block, whose workers the agent can stop only then."""
        self._is_starting = True
        try:
            yield
        finally:
            self._is_starting = False
        self._raise_request()

    def _raise_request(self) -> None:
        if self._request is not None:
            name = self._request.name
            raise SignalException(f"received {name}", self._request)

    def shut_down_rendezvous(self) -> None:
        shut_down(self._rdzv_handler)

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        self._runner = threading.get_ident()
        try:
            with health_check(self._health_check_server):
                if self._watchdog is not None:
                    self._watchdog.start(
                        self._running_pids,
                        self._leave,
                        lambda name, request: self._torch_records.timer(
                            name, request, self._worker_group
                        ),
                    )
                self._raise_request()
                self._records.open(self._event_log, self._metrics_port)
                return self._records.conclude(super().run(role))
        except Exception as error:
            if (result := self._ended_by(error)) is None:
                raise
            return self._records.conclude(result)
        finally:
            self._runner = None
            if self._group is not None:
                self._group.close()
            self._records.close()
            if self._watchdog is not None:
                self._watchdog.stop()
            if self._calls is not None:
                self._calls.close()
            if isinstance(self._logs_specs, DefaultLogsSpecs):
                self._logs_specs.remove_unused()

    def _running_pids(self) -> dict[int, int]:
        """Process ids by global rank; called by the watchdog's thread."""
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        return {ranks[local_rank]: pid for local_rank, pid in tuple(self._pids.items())}

    def _leave(self) -> None:
        """Ends the job on this node."""
        self.request_stop(signal.SIGTERM)

    def _wait(self, seconds: float) -> None:
        if self._has_own_context():
            self._next(seconds)
        else:
            super()._wait(seconds)
        self._raise_request()

    def _has_own_context(self) -> bool:
        return isinstance(self._pcontext, GuardedContext)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        self._round += 1
        self._exits.clear()
        self._pids.clear()
        if self._group is None:
            self._group = _C.WorkerGroup(become_subreaper=self._become_subreaper)
        envs = {w.local_rank: self._variables(worker_group, w) for w in worker_group.workers}
        prefixes = self._line_prefixes(worker_group)
        filters = spec.duplicate_stdout_filters, spec.duplicate_stderr_filters
        with log_files():
            dest = destinations(self._logs_specs, envs)
            self._tails = tail_logs(spec.role, dest, prefixes, *filters)
        log = next(filter(None, (*dest.stdouts.values(), *dest.stderrs.values())), "")
        log_dir = os.path.dirname(os.path.dirname(log))
        self._records.round_starting(self._restart_count(), log_dir)
        started = [
            _C.WorkerCommand(
                words,
                env={**self._environment, **envs[rank]},
                stdout_path=dest.stdouts.get(rank, ""),
                stderr_path=dest.stderrs.get(rank, ""),
                cpus=list(self._cpus[rank]),
            )
            for rank, words in enumerate(commands(spec, self._calls))
        ]
        with self._starting():
            self._group.start(started)
            self._is_running = True
            self._pcontext = GuardedContext(self, dest)
        with log_files():
            for tail in self._tails:
                tail.start()
        while len(self._pids.keys() | self._exits.keys()) < spec.local_world_size:
            self._next(None)
        if len(self._pids) == spec.local_world_size:
            self._records.workers_running()
        return dict(self._pids)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        failures = sorted(self._failures(worker_group), key=lambda one: one.time)
        first = failures[0] if failures else None
        self._records.stopping(first.describe() if first else "nodes are waiting")
        self._shutdown()
        self._records.stopped(failures)

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        grace = self._shutdown_timeout if timeout is None else timeout
        if self._pcontext is not None:
            self._pcontext.close(death_sig, grace)
        else:
            self._end_round(death_sig, grace)

    def _end_round(self, death_sig: signal.Signals, grace: float) -> None:
        if self._group is not None and self._is_running:
            self._group.stop(death_sig, grace)
            while self._is_running:
                self._next(None)
        for tail in self._tails:
            tail.stop()
        self._tails = []

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if not self._has_own_context():
            pids = {worker.id for worker in worker_group.workers}
            if pids != set(self._pcontext.pids().values()):
                return RunResult(WorkerState.UNKNOWN)
        result: RunProcsResult | None = self._pcontext.wait(0)
        if result is None:
            return RunResult(WorkerState.HEALTHY)
        ranks = {one.local_rank: one.global_rank for one in worker_group.workers}
        if result.is_failed():
            failures = {
                ranks[local_rank]: changed(failure, rank=ranks[local_rank])
                for local_rank, failure in result.failures.items()
            }
            if getattr(self._logs_specs, "is_temporary", False):
                for failure in failures.values():
                    failure.error_file = NOT_AVAILABLE
            return RunResult(WorkerState.FAILED, failures=failures)
        values = {ranks[local_rank]: value for local_rank, value in result.return_values.items()}
        return RunResult(WorkerState.SUCCEEDED, values)

    def _poll(self) -> RunProcsResult | None:
        """By local rank, as soon as one worker has failed or all have succeeded."""
        while self._is_running and self._next(0.0):
            continue
        failures = {one.local_rank: one for one in self._failures(self._worker_group)}
        if failures or not self._is_running:
            ranks = range(self._worker_group.spec.local_world_size)
            calls = None if failures else self._calls
            values = {rank: calls and calls.value(rank, self._round) for rank in ranks}
            return RunProcsResult({} if failures else values, failures)
        return None

    def _failures(self, worker_group: WorkerGroup) -> list[ProcessFailure]:
        return [
            self._failure(worker_group, local_rank, ended)
            for local_rank, ended in self._exits.items()
            if not ended.succeeded and not ended.stopped_by_us
        ]

    def _failure(
        self, worker_group: WorkerGroup, local_rank: int, ended: _C.WorkerExit
    ) -> ProcessFailure:
        failure = ProcessFailure(
            local_rank,
            self._pids.get(local_rank, 0),
            -ended.signal if ended.signal else ended.code,
            self._pcontext.error_files.get(local_rank, ""),
        )
        failure_class, cause = _class_and_cause(failure, ended)
        return changed(
            failure,
            rank=worker_group.workers[local_rank].global_rank,
            shell_code=ended.launcher_exit_code,
            how=ended.describe(),
            message=failure.message if failure.has_error_file() else ended.describe(),
            started=not ended.stage,
            failure_class=failure_class,
            cause=cause,
        )

    def _next(self, timeout: float | None) -> bool:
        """Handles the next event of the workers, if one arrives within ``timeout`` seconds."""
        assert self._group is not None
        event = self._group.next_event(timeout)
        if event is None:
            return False
        kinds = _C.WorkerEvent.Kind
        if event.kind == kinds.STARTED:
            self._pids[event.local_rank] = event.pid
            self._records.worker_started(event.local_rank, event.pid)
        elif event.kind == kinds.EXITED:
            self._exits[event.local_rank] = event.exit
            pid = self._pids.get(event.local_rank, 0)
            self._records.worker_exited(event.local_rank, pid, event.exit)
        elif event.kind == kinds.GROUP_ENDED:
            self._is_running = False
        elif event.kind in (kinds.GUARDIAN_LOST, kinds.STUCK):
            self._is_running = False
            message = f"worker supervision failed: {event.message}"
            raise NodeFault(_C.EXIT_SUPERVISION_LOST, message)
        return True

    def _line_prefixes(self, group: WorkerGroup) -> dict[int, str]:
        """By local rank: what begins each line of a worker on the console."""
        return {
            worker.local_rank: Template(self._prefix).safe_substitute(
                role_name=group.spec.role,
                rank=worker.global_rank,
                local_rank=worker.local_rank,
                hostname=os.uname().nodename,
                round=self._round,
            )
            for worker in group.workers
        }

    def _variables(self, group: WorkerGroup, worker: Any) -> dict[str, str]:
        """The variables of a worker in a round that a rendezvous handler has formed."""
        spec = group.spec
        shares = getattr(spec.rdzv_handler, "use_agent_store", False)  # not in older handlers
        share = _environment.shares_store(self._environment)
        variables = {
            "LOCAL_RANK": worker.local_rank,
            "RANK": worker.global_rank,
            "GROUP_RANK": group.group_rank,
            "ROLE_RANK": worker.role_rank,
            "ROLE_NAME": spec.role,
            "LOCAL_WORLD_SIZE": spec.local_world_size,
            "WORLD_SIZE": worker.world_size,
            "GROUP_WORLD_SIZE": group.group_world_size,
            "ROLE_WORLD_SIZE": worker.role_world_size,
            "MASTER_ADDR": group.master_addr,
            "MASTER_PORT": group.master_port,
            "TORCHELASTIC_RESTART_COUNT": self._restart_count(),
            "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
            "TORCHELASTIC_RUN_ID": spec.job_id(),
            "TORCHELASTIC_USE_AGENT_STORE": bool(shares and share),
            "ELASTIC_ROUND": self._round,
        }
        texts = {name: str(value) for name, value in variables.items()}
        if spec.virtual_local_rank:
            texts |= virtual_device(worker.local_rank, self._environment)
        return texts


def _class_and_cause(failure: ProcessFailure, ended: _C.WorkerExit) -> tuple[str, str]:
    if ended.stage:
        return "user input", "not started"
    if ended.signal:
        is_outer = ended.signal in _OUTER_SIGNALS
        return ("platform" if is_outer else "user worker"), "signal"
    return "user worker", "exception" if failure.has_error_file() else "exit code"
