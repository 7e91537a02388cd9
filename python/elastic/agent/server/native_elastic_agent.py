"""The native agent as a Python object; ``LocalElasticAgent`` and the command line run it.

The native agent (``elastic._C.Agent``) makes all decisions; this module converts its events to log
lines, states and a result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic import _C, _environment, _local_jobs
from elastic._data import changed
from elastic._host import network
from elastic._plug_in import health_check, plug_in
from elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    cpu_binding,
    function_calls,
    templates,
)
from elastic.agent.server.api import check as check_fields
from elastic.agent.server.later import Later
from elastic.agent.server.progress_notes import (
    ProgressNotes,
    StepWatch,
    logs_in,
    place_in,
    restart_line,
)
from elastic.constants import (
    AUTO_PROGRESS_VARIABLE,
    DEFAULT_DRAIN_TIMEOUT_S,
    DEFAULT_LINE_PREFIX,
    DEFAULT_ROLE,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    DEFAULT_START_TIMEOUT_S,
    LOOPBACK,
    NOTICE,
    START_METHODS,
    TORCHELASTIC_ENABLE_FILE_TIMER,
    TORCHELASTIC_HEALTH_CHECK_PORT,
    TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
)
from elastic.errors import ConfigError, ElasticError
from elastic.multiprocessing import site_hook
from elastic.multiprocessing.logs import LogOptions, ProvidesLogOptions, log_options
from elastic.rendezvous.native import node_options
from elastic.text import join_endpoints, member

if TYPE_CHECKING:
    from elastic.agent.server.nccl_ras import Witness
    from elastic.agent.server.policy_function import PolicyFunction
    from elastic.agent.server.recording import Recorder
    from elastic.agent.server.timeline import Timeline
    from elastic.multiprocessing.errors.evidence import ProcessFailure
    from elastic.torch_compat.agents.torch_records import TorchRecords
    from elastic.torch_compat.agents.watchdog import Watchdog
    from elastic.torch_compat.events import Event

logger = logging.getLogger(__name__)

HANGS_KEPT = 16  # in the result

_CHOICES: dict[str, Any] = {"stop_scope": _C.SignalScope, "hang_action": _C.HangAction}


def check(spec: WorkerSpec, shutdown_timeout: float) -> None:
    """Raises ConfigError for an invalid field, with its name."""
    check_fields(spec, shutdown_timeout)
    if spec.event_log_handler != "null":
        from elastic.torch_compat.events import get_logging_handler  # needed for events only

        get_logging_handler(spec.event_log_handler)


def watchdog(
    environment: Mapping[str, str], run_id: str, state_timeout: float | None = None
) -> Watchdog | None:
    """The checks that the environment or ``state_timeout`` asks for; None: no check."""
    names = (
        TORCHELASTIC_ENABLE_FILE_TIMER,
        TORCHELASTIC_HEALTH_CHECK_PORT,
        TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
    )
    if not state_timeout and not any(map(environment.get, names)):
        return None
    from elastic.torch_compat.agents.watchdog import Watchdog

    return Watchdog(environment, run_id, state_timeout)


class NativeElasticAgent:
    """Runs a spec's workers on this machine until the whole job has succeeded or failed.

    ``run`` may be called once. ``request_stop`` may be called at any time, from a signal handler
    or another thread.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogOptions | ProvidesLogOptions | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_S,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        start_timeout: float = DEFAULT_START_TIMEOUT_S,
        rendezvous: _C.RendezvousOptions | None = None,
        become_subreaper: bool = False,
        worker_cpus: Sequence[Sequence[int]] | None = None,
        event_log: str = "",
        metrics_port: int = 0,
        warm_template: Sequence[str] = (),
        modules_after: Sequence[str] = (),
        auto_progress: bool | None = None,
        failure_policy: Mapping[str, str] | None = None,
        policy_function: str = "",
        node_checks: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """``environment`` is the workers' whole environment; None: this process's environment.

        ``start_method`` is checked and has no other effect: a function is called in a new process
        with its own interpreter, as with spawn.
        ``start_timeout``: the time within which a worker must execute its program.
        ``exit_barrier_timeout``: how long to wait for other nodes when all workers here have
        succeeded; None: as long as they work. ``rendezvous``: the options of the rendezvous, with
        this node's address; without it the job has one node.
        ``event_log``: the file to which transitions are appended as JSON lines. ``metrics_port``:
        serves metrics for Prometheus.
        ``worker_cpus``: the CPUs of each local rank; None: as ``spec.numa_options`` sets.
        ``health_check_server`` runs while the agent does. ``uninterruptible_state_timeout``: the
        limit for a worker in an uninterruptible wait; None: as the variable sets.
        ``warm_template``: the command of the process that forks the workers; none: they are
        executed. ``modules_after``: modules that the caller needs for the result of a failed job.
        ``auto_progress``: whether Python workers report their steps and stacks (docs/hangs.md).
        None: they do, the steps only if the script does not import ``elastic.worker``.
        ``failure_policy``: the rules of a job of one node, as ``RendezvousOptions.extra_settings``.
        ``policy_function``: what such rules leave open, as the key ``function`` of a policy file.
        ``node_checks``: commands that test this host, as ``--node-check``.
        ``settings``: further fields of ``_C.AgentOptions``. Those of an option of the command line
        have its name, its meaning and its default (docs/cli.md), as ``restart_backoff``;
        ``hang_timeout`` is 0 if it is learned, ``straggler_timeout`` if there is no limit;
        ``inplace_grace`` is None if every change of the members restarts all workers,
        ``inplace_prepare`` if workers start with their round and not before it,
        ``worker_ports`` the first and the last port for the workers' store; with
        ``share_store=False`` rank 0's worker hosts it, with ``capture_stderr=False`` the report has
        no lines of an inherited stderr.
        """
        check(spec, shutdown_timeout)
        for name in _CHOICES.keys() & settings.keys():
            settings[name] = member(_CHOICES[name], settings[name], name)
        if start_method not in START_METHODS:
            raise ConfigError(
                f"start_method is {start_method!r}: expected one of {', '.join(START_METHODS)}"
            )
        if rendezvous is None and spec.rdzv_handler is not None:
            rendezvous = _native_options(spec.rdzv_handler)
            spec = changed(spec, local_addr=None)
        if environment is None:
            environment = _environment.of_ranks()
        alone = rendezvous is None
        if rendezvous is None:
            address = spec.master_addr or spec.local_addr or LOOPBACK
            folders = _local_jobs.directories(_environment.inherited())
            path = _local_jobs.new_path(spec.job_id(), _local_jobs.SOCKET, folders)
            rendezvous = node_options(
                local_addr=address, failure_policy=failure_policy, observer_socket=path
            )
        elif spec.local_addr:
            raise ConfigError(
                "local_addr cannot be combined with `rendezvous`: set RendezvousOptions.local_addr"
            )
        elif spec.master_addr:
            settings["reach_timeout"] = 0.0  # the workers connect elsewhere
        logs = log_options(logs_specs)
        if warm_template and _has_debugger():
            logger.warning("--warm is off: the debugger of this process cannot follow forks of it")
            warm_template = ()
        if node_checks:
            from elastic.agent.server.node_checks import settings_of

            settings |= settings_of(node_checks)
        self._policy_function: PolicyFunction | None = None
        if policy_function:
            from elastic.agent.server.policy_function import PolicyFunction

            self._policy_function = PolicyFunction.named(policy_function, spec)
            settings["asks_for_advice"] = True
        self._calls = function_calls(spec)
        if self._calls is not None:
            weakref.finalize(self, self._calls.close)
        self._health_check_server = health_check_server
        variables = dict(environment)
        if not rendezvous.is_single_node and not spec.master_addr:
            host, own = rendezvous.endpoint_host, rendezvous.local_addr
            variables |= network.worker_variables(environment, host, own)
        self._witness = _witness(environment)
        if self._witness is not None:
            weakref.finalize(self, self._witness.close)
            variables |= self._witness.variables
        self._watchdog = watchdog(environment, spec.job_id(), uninterruptible_state_timeout)
        if self._watchdog is not None:
            variables |= self._watchdog.variables
        if auto_progress is None:
            program = spec.what()
            if callable(program) or site_hook.is_python(program, environment):
                site_hook.add(variables, bool(warm_template))
        elif auto_progress:
            variables[AUTO_PROGRESS_VARIABLE] = "1"
            site_hook.add(variables, bool(warm_template))
        cpus = cpu_binding(spec, environment, worker_cpus)
        self._options = _C.AgentOptions(
            templates(spec, logs, environment, self._calls, cpus, alone),
            env=variables,
            run_id=spec.job_id(),
            role=spec.role,
            max_restarts=spec.max_restarts,
            rendezvous=rendezvous,
            stop_grace=shutdown_timeout,
            exit_barrier_timeout=exit_barrier_timeout,
            master_port=spec.master_port or 0,
            log_dir=logs.log_dir or "",
            log_bytes_max=logs.max_bytes,
            log_files_max=logs.max_files,
            line_prefix=log_line_prefix_template or DEFAULT_LINE_PREFIX,
            merge_lines=logs.merge_lines,
            stdout_filters=list(logs.stdout_filters) or spec.duplicate_stdout_filters or [],
            stderr_filters=list(logs.stderr_filters) or spec.duplicate_stderr_filters or [],
            become_subreaper=become_subreaper,
            warm_template=list(warm_template),
            start_timeout=start_timeout,
            **settings,
        )
        self._keeps_logs = logs.log_dir is not None
        self._is_warm = bool(warm_template)
        self._has_hinted = False
        self._steps = StepWatch(float(settings.get("hang_timeout", 0)))
        self._group = WorkerGroup(spec)
        self._round: _C.RoundInfo | None = None
        self._stopped: set[int] = set()
        self._succeeded: dict[int, float] = {}  # by rank: when it exited, by time.monotonic()
        self._has_run = False
        self._total_execution_time = 0  # seconds, after `run`
        self._native: _C.Agent | None = None  # while it runs
        self._is_alone = rendezvous.is_single_node
        self._requests: list[int] = []
        self._torch_records: TorchRecords | None = None  # see _updated_torch_records()
        self._drain_requests: list[tuple[int, float]] = []
        self._stops_noted = 0
        self._stop_line = ""  # the first line about the end of the round
        self._kept: dict[str, deque[dict[str, Any]]] = {
            name: deque(maxlen=HANGS_KEPT) for name in ("hangs", "stalls", "mismatches", "hosts")
        }
        kinds = _C.AgentEvent.Kind
        self._verdicts = {  # where they are kept; "": nowhere
            kinds.HANG: "hangs",
            kinds.STRAGGLING: "",
            kinds.STALLED: "stalls",
            kinds.STALL_OVER: "stalls",
            kinds.MISMATCH: "mismatches",
            kinds.DRAIN: "",
            kinds.HOST_EXCLUDED: "hosts",
            kinds.HOST_READMITTED: "hosts",
        }
        self._checks: dict[str, dict[str, str]] = {}  # the latest finding of each check
        self._endpoints = rendezvous.endpoints
        self._record: _local_jobs.Record | None = None
        host, port = rendezvous.endpoint_host, rendezvous.endpoint_port
        self._progress = ProgressNotes(self._log, f"{host}:{port}" if host else "")
        self._killed: set[int] = set()  # ranks that needed SIGKILL to stop
        self._stop_grace = shutdown_timeout
        self._start_timeout = start_timeout
        self._recorder_options = event_log, metrics_port
        self._recorder: Recorder | None = None
        # Loaded at the first restart; until then the events of the round are kept for it.
        self._timeline: Timeline | None = None
        self._round_events: list[_C.AgentEvent] = []
        self._later = Later(modules_after)

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._group

    def request_drain(
        self, signum: int = signal.SIGTERM, timeout: float = DEFAULT_DRAIN_TIMEOUT_S
    ) -> None:
        """Stops all ranks of the job at one step, as ``LocalElasticAgent.request_drain``."""
        native = self._native
        self._drain_requests.append((signum, timeout))
        self._call(native, lambda agent: agent.request_drain(signum, timeout))

    def request_stop(self, signum: int) -> None:
        """Stops the workers with a signal, as ``LocalElasticAgent.request_stop``."""
        native = self._native
        self._requests.append(signum)
        self._call(native, lambda agent: agent.request_stop(signum))

    def forward(self, signum: int) -> None:
        """Delivers a signal to the running workers, not to their children."""
        self._call(self._native, lambda agent: agent.forward(signum))

    @staticmethod
    def _call(native: _C.Agent | None, call: Callable[[_C.Agent], None]) -> None:
        if native is not None:
            with contextlib.suppress(ElasticError):  # closed: `run` has ended in another thread
                call(native)

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        if self._has_run:
            raise RuntimeError("an agent runs once")
        self._has_run = True
        with health_check(self._health_check_server):
            return self._run()

    def _run(self) -> RunResult:
        begun = time.monotonic()
        try:
            if self._watchdog is not None:
                self._watchdog.start(self._pids, self._leave, self._timer_event)
            self._recorder = self._open_recorder()
            result = self._supervise()
            if self._recorder is not None:
                self._recorder.conclude(result, self._group)
            return result
        finally:
            if self._recorder is not None:
                self._recorder.close()
            if self._watchdog is not None:
                self._watchdog.stop()
            if self._calls is not None:
                self._calls.close()
            self._total_execution_time = int(time.monotonic() - begun)

    def event(self, state: str, error: str | None) -> Event:
        """torch's event of this agent: SUCCEEDED, or FAILED with a traceback."""
        records, total = self._updated_torch_records(), self._total_execution_time
        return records.event(state, "AGENT", self._group, total_run_time=total, raw_error=error)

    def _has_torch_handlers(self) -> bool:
        """Whether a handler may receive records: none can be set in a module that is not loaded."""
        compat = "elastic.torch_compat"
        loaded = f"{compat}.events" in sys.modules or f"{compat}.metrics" in sys.modules
        return loaded or self._group.spec.event_log_handler != "null"

    def _timer_event(self, name: str, request: Any) -> None:
        """Called by the timers' thread, too."""
        if self._has_torch_handlers():
            self._updated_torch_records().timer(name, request, self._group)

    def _updated_torch_records(self) -> TorchRecords:
        """The same object each time: a handler of the program that fails is not called again."""
        if self._torch_records is None:
            from elastic.torch_compat.agents.torch_records import TorchRecords

            self._torch_records = TorchRecords(self._group.spec)
        self._torch_records.restarts = self._round.restart_count if self._round else 0
        return self._torch_records

    def _open_recorder(self) -> Recorder | None:
        event_log, metrics_port = self._recorder_options
        if not (event_log or metrics_port or self._has_torch_handlers()):
            return None
        from elastic.agent.server.recording import Recorder

        try:
            return Recorder(
                self._group.spec,
                event_log,
                metrics_port,
                open_timeout=self._start_timeout,
                is_stopped=lambda: bool(self._requests),
            )
        except ConfigError as error:
            if not self._requests:
                raise
            self._log(logging.WARNING, "%s", error)
            return None

    def _pids(self) -> dict[int, int]:
        return {worker.global_rank: worker.id for worker in self._group.workers if worker.id}

    def _leave(self) -> None:
        """Ends the job on this node and kills its workers at once."""
        for _ in range(3):
            self.request_stop(signal.SIGTERM)

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Lets ``elastic-launch status`` find a job with a coordinator from this host.

        Without an endpoint the address follows with the first round (``_note_coordinator``).
        """
        if self._is_alone or (self._endpoints and not self._endpoints[0][1]):
            yield
            return
        folders = _local_jobs.directories(_environment.inherited())
        endpoint = join_endpoints(self._endpoints) if self._endpoints else ""
        self._record = _local_jobs.Record(self._group.spec.job_id(), endpoint, folders)
        try:
            yield
        finally:
            self._record.close()

    def _note_coordinator(self, event: _C.AgentEvent) -> None:
        if self._record is None or event.coordinator is None or not event.coordinator.address:
            return
        if self._endpoints:
            self._record.write(join_endpoints(self._endpoints), event.coordinator.address)
        else:
            self._record.write(event.coordinator.address)

    def _supervise(self) -> RunResult:
        with self._recorded(), _C.Agent(self._options) as native:
            # A signal handler that ran before this assignment only appended its request.
            drains, earlier = len(self._drain_requests), len(self._requests)
            self._native = native
            for signum in self._requests[:earlier]:
                native.request_stop(signum)
            for signum, timeout in self._drain_requests[:drains]:
                native.request_drain(signum, timeout)
            finished = False
            while not finished:
                delay = self._steps.delay(self._later.delay(self._progress.delay()))
                event = native.next_event(delay)
                with plug_in("report of an event"):
                    self._progress.flush()
                    if sentence := self._steps.sentence():
                        self._log(NOTICE, "%s", sentence)
                self._later.step(is_idle=event is None)
                if event is not None:
                    # Its text may come from another node, and log handlers from the program.
                    with plug_in("report of an event"):
                        self._observe(event)
                        self._note_incident(event)
                    if self._recorder is not None:
                        self._recorder.observe(event, self._group)
                    if self._policy_function is not None and event.failure is not None:
                        self._policy_function.ask(native, event)
                    finished = event.kind == _C.AgentEvent.Kind.FINISHED
            self._native = None
            return self._conclude(native.result)

    def _observe(self, event: _C.AgentEvent) -> None:
        kinds = _C.AgentEvent.Kind
        self._steps.observe(event.kind)
        group = self._group
        group.state = WorkerState[event.state.name]
        waited = ""
        if event.kind in (kinds.ROUND_STARTING, kinds.RESTARTING, kinds.FINISHED):
            waited = self._progress.drop()
        if event.kind == kinds.PROGRESS:
            self._progress.note(event, group.state)
        elif event.kind == kinds.COORDINATOR_LOG:
            self._log(logging.INFO, "coordinator: %s", event.message)
        elif event.kind == kinds.NOTICE:
            self._log(logging.WARNING, "%s", event.message)
        elif event.check is not None:
            self._note_check(event.message, event.check)
        elif event.kind == kinds.COORDINATOR_MOVED:
            self._log(NOTICE, "%s", event.message)
            self._note_coordinator(event)
        elif event.kind == kinds.ROUND_STARTING:
            self._note_killed()
            self._enter(event.round)
            if not self._endpoints:
                self._note_coordinator(event)
            self._log(
                logging.INFO,
                "starting workers%s%s",
                place_in(event.round),
                logs_in(event, self._keeps_logs),
            )
        elif event.kind == kinds.WORKER_STARTED:
            group.workers[event.local_rank].id = event.pid
            self._log(logging.DEBUG, "rank %s is pid %s", self._rank(event), event.pid)
        elif event.kind == kinds.WORKERS_RUNNING:
            self._log(logging.INFO, "all workers run")
        elif event.kind == kinds.WORKER_EXITED:
            if event.exit.stopped_by_us:
                self._stopped.add(self._rank(event))
                if event.exit.killed_by_us:
                    self._killed.add(self._rank(event))
            elif event.exit.shell_code == 0:
                self._succeeded[self._rank(event)] = event.exit.at
            ended = _C.describe_worker(self._rank(event), event.exit.describe())
            self._log(logging.INFO, "%s", ended)
        elif event.kind == kinds.STOPPING:
            self._note_stop(event)
        elif event.kind == kinds.RESTARTING:
            stopped, self._stop_line = self._stop_line, ""
            self._log(logging.WARNING, "%s", restart_line(event.message, waited, stopped))
        elif event.kind in self._verdicts:
            is_notice = event.kind in (kinds.STALL_OVER, kinds.DRAIN, kinds.HOST_READMITTED)
            level = NOTICE if is_notice else logging.WARNING
            self._log(level, "%s", event.message)
            if (kept := self._verdicts[event.kind]) and self._round is not None:
                found = {"at": event.at, "round": self._round.round, "message": event.message}
                self._kept[kept].append(found)
                if event.kind in (kinds.HANG, kinds.STALLED):
                    self._ask_nccl(self._round, found)
        elif event.kind == kinds.FINISHED:
            self._note_killed()
            if event.state == _C.AgentState.SUCCEEDED and event.message:
                self._log(logging.WARNING, "%s", event.message)  # of nodes that were lost
            if event.state == _C.AgentState.SUCCEEDED and self._round is None:
                self._log(
                    logging.WARNING,
                    "the job %s has succeeded, but no worker ran on this node: it was a spare; "
                    "give other jobs at this endpoint run ids of their own (--rdzv-id)",
                    self._group.spec.job_id(),
                )
            self._log(logging.INFO, "finished")

    def _note_incident(self, event: _C.AgentEvent) -> None:
        kinds = _C.AgentEvent.Kind
        if self._timeline is not None:
            self._timeline.update(event)
            self._hint_at_warm_workers(self._timeline.first_step(event))
        elif event.kind == kinds.ROUND_STARTING:
            self._round_events = [event]
        elif event.kind == kinds.WORKER_EXITED:
            self._round_events.append(event)
        elif event.kind == kinds.RESTARTING:
            from elastic.agent.server.timeline import Timeline

            self._timeline = Timeline()
            for earlier in (*self._round_events, event):
                self._timeline.update(earlier)

    def _hint_at_warm_workers(self, step: dict[str, Any] | None) -> None:
        """Logs once how much of a restart ``--warm`` would save, if that is most of it."""
        from elastic.agent.server.timeline import warm_hint

        if step is None or self._is_warm or self._has_hinted:
            return
        if hint := warm_hint(step):
            self._has_hinted = True
            self._log(NOTICE, "%s", hint)

    def _note_check(self, message: str, check: _C.AgentCheck) -> None:
        self._log(logging.INFO if check.verdict == "good" else logging.WARNING, "%s", message)
        found = {"check": check.name, "verdict": check.verdict, "reason": check.reason}
        self._checks[check.name] = {"host": check.host} | found

    def _note_stop(self, event: _C.AgentEvent) -> None:
        """Logs why the round ends; after a signal, what the agent waits for, and how to stop."""
        sentence = event.message
        if not self._requests:
            states = _C.AgentState
            is_incident = event.state not in (states.SUCCEEDED, states.STOPPED)
            self._log(logging.WARNING if is_incident else logging.INFO, "%s", sentence)
            self._stop_line = self._stop_line or sentence
            return
        self._stops_noted += 1
        if self._stops_noted > 1:
            self._log(NOTICE, "%s", sentence)
        else:
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + self._stop_grace))
            self._log(
                NOTICE,
                "received %s; waiting for the workers until %s, another signal shortens the wait",
                signal.Signals(self._requests[0]).name,
                until,
            )

    def _note_killed(self) -> None:
        if self._killed:
            ranks = _C.describe_ranks(sorted(self._killed))
            self._log(NOTICE, "killed by SIGKILL, since they did not stop in time: %s", ranks)
            self._killed.clear()

    def _enter(self, info: _C.RoundInfo) -> None:
        group = self._group
        self._round = info
        self._stopped.clear()
        self._succeeded.clear()
        group.group_rank, group.group_world_size = info.group_rank, info.group_world_size
        group.master_addr = group.spec.master_addr or info.master_addr
        group.master_port = info.master_port
        group.workers = [
            Worker(place.local_rank, place.rank, place.role_rank, place.world_size,
                   place.role_world_size)
            for place in info.workers
        ]  # fmt: skip

    def _conclude(self, native: _C.AgentResult) -> RunResult:
        failures: dict[int, ProcessFailure] = {}
        message = native.message
        offset = time.time() - time.monotonic()
        try:
            if native.failures:
                from elastic.multiprocessing.errors import evidence

                failures = evidence.examine(native.failures, keeps_logs=self._keeps_logs)
                if self._watchdog is not None:
                    evidence.add_timers(failures, self._watchdog.expired())
        except (ImportError, OSError) as error:  # the exit code and the message matter more
            logger.warning("the failures cannot be examined: %s", error)
            message = message or native.failures[0].message
        return RunResult(
            state=WorkerState[native.state.name],
            return_values=self._return_values() if native.exit_code == 0 else {},
            failures=failures,
            exit_code=native.exit_code,
            message=message,
            run_id=self._group.spec.job_id(),
            restart_count=self._round.restart_count if self._round else 0,
            max_restarts=self._group.spec.max_restarts,
            stopped=tuple(sorted(self._stopped - failures.keys())),
            succeeded={rank: offset + at for rank, at in self._succeeded.items()},
            job=None if self._is_alone else native.job,
            is_cause=native.is_cause,
            incidents=tuple(self._timeline.latest) if self._timeline is not None else (),
            hangs=tuple(self._kept["hangs"]),
            stalls=tuple(self._kept["stalls"]),
            mismatches=tuple(self._kept["mismatches"]),
            hosts=tuple(self._kept["hosts"]),
            node_checks=tuple(self._checks.values()),
            is_unfit=native.exit_code == _C.EXIT_BAD_HOST and native.job is None,
        )

    def _ask_nccl(self, info: _C.RoundInfo, found: dict[str, Any]) -> None:
        """Any process of the job replies for all of them, so one node asks."""
        if self._witness is None or info.group_rank != 0:
            return

        def note(text: str) -> None:
            found["nccl"] = text
            self._log(logging.WARNING, "NCCL's RAS: %s", text)

        self._witness.ask(info.workers[0].world_size, note)

    def _return_values(self) -> dict[int, object]:
        calls, info = self._calls, self._round
        if calls is None or info is None:
            return {worker.global_rank: None for worker in self._group.workers}
        return {
            worker.global_rank: calls.value(worker.local_rank, info.round)
            for worker in self._group.workers
        }

    def _rank(self, event: _C.AgentEvent) -> int:
        return self._group.workers[event.local_rank].global_rank

    def _log(self, level: int, message: str, *values: object) -> None:
        number = self._round.round if self._round else 0
        state = self._group.state.value
        context = f"run_id={self._group.spec.job_id()} round={number} state={state} "
        logger.log(level, message, *values, extra={"context": context})


def _native_options(handler: object) -> _C.RendezvousOptions:
    from elastic.torch_compat.rendezvous.handlers import DynamicRendezvousHandler

    if not isinstance(handler, DynamicRendezvousHandler):
        raise ConfigError(
            f"{type(handler).__name__} is not a rendezvous handler of elastic's own: "
            "use HandlerElasticAgent"
        )
    return handler.native_options


def _witness(environment: Mapping[str, str]) -> Witness | None:
    """None: the workers have no NCCL, or it does not listen."""
    if "NCCL_RAS_ADDR" not in environment and not os.path.exists("/dev/nvidiactl"):
        return None
    from elastic.agent.server.nccl_ras import Witness

    return Witness.of(environment)


def _has_debugger() -> bool:
    if "pydevd" not in sys.modules:
        return False
    from elastic._host import debugger

    return debugger.follows_children()
