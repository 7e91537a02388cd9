"""The agent whose workers are forked copies of this process.

For functions with ``start_method="fork"``: they see the objects of this process as they are, as
changed modules, open files, and the locks and queues of the fork context. There is no guardian: a
worker is killed when the thread that forked it ends, but not the processes that it has started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic.agent.server.api import WorkerGroup, WorkerSpec, function_args
from elastic.multiprocessing import signals
from elastic.multiprocessing.logs_specs import LogsSpecs
from elastic.torch_compat.agents.handler_elastic_agent import HandlerElasticAgent
from elastic.torch_compat.agents.simple_elastic_agent import log_files
from elastic.torch_compat.processes.multiprocess_context import MultiprocessContext


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Runs in the worker. The agent's signal handlers are not for this copy of it."""
    signals.forget(every=True)
    return function(*args)


class ForkingElasticAgent(HandlerElasticAgent):
    """``run`` may be called once. ``request_stop`` may be called from a signal handler."""

    def __init__(self, spec: WorkerSpec, logs_specs: LogsSpecs | None = None, **more: Any) -> None:
        """``more``: as for HandlerElasticAgent. The context of the processes binds them to CPUs."""
        super().__init__(spec, logs_specs, worker_cpus=(), **more)

    @staticmethod
    def _function_calls(spec: WorkerSpec) -> None:
        return None

    def _wait(self, seconds: float) -> None:
        self._pcontext.wait(max(seconds, 0.0))
        self._raise_request()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        self._round += 1
        with log_files():
            context = MultiprocessContext(
                spec.role,
                _call,
                {rank: (spec.what(), args) for rank, args in function_args(spec).items()},
                {
                    one.local_rank: {**self._environment, **self._variables(worker_group, one)}
                    for one in worker_group.workers
                },
                "fork",
                self._logs_specs,
                self._line_prefixes(worker_group),
                spec.numa_options,
                spec.duplicate_stdout_filters,
                spec.duplicate_stderr_filters,
            )
        with self._starting():  # the signals are handled by the program that runs the agent
            context._launch()
            self._pcontext, self._pids = context, context.pids()
        return dict(self._pids)
