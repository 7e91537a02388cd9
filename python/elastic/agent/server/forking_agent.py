"""The agent whose workers are forked copies of this process.

For functions with ``start_method="fork"``: they see the objects of this process as they are, as
changed modules, open files, and the locks and queues of the fork context. There is no guardian: a
worker is killed when the thread that forked it ends, but not the processes that it has started.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from elastic import _environment
from elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, check, function_args
from elastic.agent.server.guarded_context import by_global_rank
from elastic.agent.server.handler_elastic_agent import line_prefixes, round_variables
from elastic.agent.server.simple_elastic_agent import SimpleElasticAgent, log_files
from elastic.constants import DEFAULT_LINE_PREFIX, DEFAULT_ROLE, DEFAULT_SHUTDOWN_TIMEOUT_S
from elastic.multiprocessing.errors.signal_exception import SignalException
from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsSpecs
from elastic.multiprocessing.multiprocess_context import MultiprocessContext
from elastic.multiprocessing.process_context import PContext, RunProcsResult


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Runs in the worker. The agent's signal handlers are not for this copy of it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    return function(*args)


class ForkingElasticAgent(SimpleElasticAgent):
    """``run`` may be called once. ``request_stop`` may be called from a signal handler."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        check(spec, shutdown_timeout)
        super().__init__(spec, shutdown_timeout=shutdown_timeout)
        self._logs_specs = logs_specs or DefaultLogsSpecs()
        self._prefix = log_line_prefix_template or DEFAULT_LINE_PREFIX
        self._environment = _environment.of_ranks() if environment is None else environment
        self._context: PContext | None = None  # of the current round
        self._ended: RunProcsResult | None = None  # how it has ended
        self._round = -1  # its number, from 0
        self._runner: int | None = None
        self._request: signal.Signals | None = None

    def request_stop(self, signum: int) -> None:
        """Stops the workers with a signal and the shutdown timeout."""
        if self._request is None:
            self._request = signal.Signals(signum)
        if threading.get_ident() == self._runner and not self._is_stopping:
            self._raise_request()  # also interrupts a rendezvous that blocks

    def _raise_request(self) -> None:
        if self._request is not None:
            raise SignalException(f"received {self._request.name}", self._request)

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        self._runner = threading.get_ident()
        try:
            self._raise_request()
            return super().run(role)
        except Exception as error:
            if (result := self._ended_by(error)) is None:
                raise
            return result
        finally:
            self._runner = None
            if isinstance(self._logs_specs, DefaultLogsSpecs):
                self._logs_specs.remove_unused()

    def _wait(self, seconds: float) -> None:
        self._await_end(max(seconds, 0.0))
        self._raise_request()

    def _await_end(self, seconds: float) -> RunProcsResult | None:
        # Once: a worker that is stopped then is no failure.
        if self._ended is None and self._context is not None:
            self._ended = self._context.wait(seconds)
        return self._ended

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        function = spec.what()
        self._round += 1
        self._ended = None
        args = {rank: (function, given) for rank, given in function_args(spec).items()}
        workers = worker_group.workers
        with log_files():
            context = MultiprocessContext(
                spec.role,
                _call,
                args,
                {one.local_rank: self._variables(worker_group, one) for one in workers},
                "fork",
                self._logs_specs,
                line_prefixes(self._prefix, worker_group, self._round),
                numa_options=spec.numa_options,
                duplicate_stdout_filters=spec.duplicate_stdout_filters,
                duplicate_stderr_filters=spec.duplicate_stderr_filters,
            )
        context._launch()  # the signals are handled by the program that runs the agent
        self._context = context
        return dict(context.pids())

    def _variables(self, group: WorkerGroup, worker: Any) -> dict[str, str]:
        variables = round_variables(
            group, worker, self._round, self._restart_count(), self._environment
        )
        return {**self._environment, **variables}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        if self._context is not None:
            self._context.close(signal.SIGTERM, int(self._shutdown_timeout))

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        if self._context is not None:
            grace = self._shutdown_timeout if timeout is None else timeout
            self._context.close(death_sig, int(grace))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        return by_global_rank(worker_group, self._await_end(0.0))
