"""The agent for rendezvous handlers of other distributions (entry points ``torchrun.handlers``).

A native guardian supervises the workers; the handler decides the members of each round.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
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
    check,
    cpu_binding,
    function_calls,
    virtual_device,
    watchdog,
)
from elastic.agent.server.guarded_context import GuardedContext, by_global_rank
from elastic.agent.server.simple_elastic_agent import SimpleElasticAgent, log_files
from elastic.constants import (
    DEFAULT_LINE_PREFIX,
    DEFAULT_ROLE,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    HANDLER_EXIT_BARRIER_S,
)
from elastic.errors import NodeFault
from elastic.multiprocessing.errors.evidence import ProcessFailure
from elastic.multiprocessing.errors.signal_exception import SignalException
from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsSpecs, destinations
from elastic.multiprocessing.process_context import RunProcsResult
from elastic.multiprocessing.tail_log import TailLog, tail_logs
from elastic.text import substitute

if TYPE_CHECKING:
    from elastic.agent.server.handler_records import HandlerRecords

# Signals that a program does not send to itself: an operator or the kernel did.
_OUTER_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class HandlerElasticAgent(SimpleElasticAgent):
    """Runs workers on this machine in the rounds of any rendezvous handler.

    ``run`` may be called once. ``request_stop`` may be called from a signal handler.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float = HANDLER_EXIT_BARRIER_S,
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
        check(spec, shutdown_timeout)
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
        self._calls = function_calls(spec)
        self._group: _C.WorkerGroup | None = None
        # The workers of the round: the guardian's, or those that a subclass has started.
        self._pcontext: Any = None
        self._round = -1  # the number of the current round, from 0
        self._exits: dict[int, _C.WorkerExit] = {}
        self._pids: dict[int, int] = {}
        self._error_files: Mapping[int, str] = {}
        self._is_running = False
        self._tails: list[TailLog] = []
        self._runner: int | None = None
        self._request: signal.Signals | None = None
        self._repetitions = 0  # of the request, while the workers are being stopped
        self._event_log, self._metrics_port = event_log, metrics_port
        self._records: HandlerRecords | None = None

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
        elif threading.get_ident() == self._runner and not self._is_stopping:
            self._raise_request()  # also interrupts a rendezvous that blocks

    def request_drain(self, signum: int = signal.SIGTERM, timeout: float = 0.0) -> None:
        """Stops the workers at once: a rendezvous handler has no coordinator of a common step."""
        self.request_stop(signal.SIGTERM)

    def forward(self, signum: int) -> None:
        """Delivers a signal to the running workers, not to their children."""
        if self._group is not None and self._is_running:
            self._group.forward(signum, _C.SignalScope.LEADER)

    def _raise_request(self) -> None:
        if self._request is not None:
            name = self._request.name
            raise SignalException(f"received {name}", self._request)

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
                if self._event_log or self._metrics_port:
                    from elastic.agent.server.handler_records import HandlerRecords

                    self._records = HandlerRecords(
                        self._worker_group.spec,
                        self._worker_group,
                        self._event_log,
                        self._metrics_port,
                    )
                return self._recorded(super().run(role))
        except Exception as error:
            if (result := self._ended_by(error)) is None:
                raise
            return self._recorded(result)
        finally:
            self._runner = None
            if self._group is not None:
                self._group.close()
            if self._records is not None:
                self._records.close()
            if self._watchdog is not None:
                self._watchdog.stop()
            if self._calls is not None:
                self._calls.close()
            if isinstance(self._logs_specs, DefaultLogsSpecs):
                self._logs_specs.remove_unused()

    def _recorded(self, result: RunResult) -> RunResult:
        if self._records is not None:
            self._records.conclude(result)
        return result

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
        prefixes = line_prefixes(self._prefix, worker_group, self._round)
        filters = spec.duplicate_stdout_filters, spec.duplicate_stderr_filters
        with log_files():
            dest = destinations(self._logs_specs, envs)
            self._tails = tail_logs(spec.role, dest, prefixes, *filters)
        self._error_files = dest.error_files
        if self._records is not None:
            log = next(filter(None, (*dest.stdouts.values(), *dest.stderrs.values())), "")
            log_dir = os.path.dirname(os.path.dirname(log))
            self._records.round_starting(self._restart_count(), log_dir)
        entry = spec.what()
        words = () if callable(entry) else (str(entry), *map(str, spec.args))
        self._group.start(
            [
                _C.WorkerCommand(
                    self._calls.argv(rank)
                    if self._calls
                    else [substitute(word, rank) for word in words],
                    env={**self._environment, **envs[rank]},
                    stdout_path=dest.stdouts.get(rank, ""),
                    stderr_path=dest.stderrs.get(rank, ""),
                    cpus=list(self._cpus[rank]),
                )
                for rank in range(spec.local_world_size)
            ]
        )
        self._is_running = True
        self._pcontext = GuardedContext(self._poll, self._next, self._pids, self._end_round)
        self._pcontext.stdouts, self._pcontext.stderrs = dest.stdouts, dest.stderrs
        self._pcontext.error_files = dest.error_files
        with log_files():
            for tail in self._tails:
                tail.start()
        while len(self._pids.keys() | self._exits.keys()) < spec.local_world_size:
            self._next(None)
        if self._records is not None and len(self._pids) == spec.local_world_size:
            self._records.workers_running()
        return dict(self._pids)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        failures = sorted(self._failures(worker_group), key=lambda one: one.time)
        if self._records is not None:
            first = failures[0] if failures else None
            reason = f"{first.who()} {first.how}" if first else "nodes are waiting"
            self._records.stopping(reason)
        self._shutdown()
        if self._records is not None:
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
        return by_global_rank(worker_group, self._pcontext.wait(0))

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
            self._error_files.get(local_rank, ""),
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
            if self._records is not None:
                self._records.worker_started(event.local_rank, event.pid)
        elif event.kind == kinds.EXITED:
            self._exits[event.local_rank] = event.exit
            if self._records is not None:
                pid = self._pids.get(event.local_rank, 0)
                self._records.worker_exited(event.local_rank, pid, event.exit)
        elif event.kind == kinds.GROUP_ENDED:
            self._is_running = False
        elif event.kind in (kinds.GUARDIAN_LOST, kinds.STUCK):
            self._is_running = False
            message = f"worker supervision failed: {event.message}"
            raise NodeFault(_C.EXIT_SUPERVISION_LOST, message)
        return True

    def _variables(self, group: WorkerGroup, worker: Any) -> dict[str, str]:
        return round_variables(group, worker, self._round, self._restart_count(), self._environment)


def line_prefixes(template: str, group: WorkerGroup, round_number: int) -> dict[int, str]:
    """By local rank: what begins each line of a worker on the console."""
    return {
        worker.local_rank: Template(template).safe_substitute(
            role_name=group.spec.role,
            rank=worker.global_rank,
            local_rank=worker.local_rank,
            hostname=os.uname().nodename,
            round=round_number,
        )
        for worker in group.workers
    }


def round_variables(
    group: WorkerGroup,
    worker: Any,
    round_number: int,
    restart_count: int,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """The variables of a worker in a round that a rendezvous handler has formed."""
    spec = group.spec
    shares = getattr(spec.rdzv_handler, "use_agent_store", False)  # not in older handlers
    share = environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"
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
        "TORCHELASTIC_RESTART_COUNT": restart_count,
        "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
        "TORCHELASTIC_RUN_ID": spec.job_id(),
        "TORCHELASTIC_USE_AGENT_STORE": bool(shares and share),
        "ELASTIC_ROUND": round_number,
    }
    texts = {name: str(value) for name, value in variables.items()}
    if spec.virtual_local_rank:
        texts |= virtual_device(worker.local_rank, environment)
    return texts


def _class_and_cause(failure: ProcessFailure, ended: _C.WorkerExit) -> tuple[str, str]:
    if ended.stage:
        return "user input", "not started"
    if ended.signal:
        is_outer = ended.signal in _OUTER_SIGNALS
        return ("platform" if is_outer else "user worker"), "signal"
    return "user worker", "exception" if failure.has_error_file() else "exit code"
