"""A set of processes that a Python program starts without an agent.

They are not restarted, and there is no guardian: if the starting program is killed, processes that
execute a program keep running. Those that call a function are killed when the program ends, and
unless they are children of a fork server, when the thread that started them ends.
``elastic.launcher`` supervises workers.
"""

from __future__ import annotations

import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any

from elastic import _environment
from elastic._data import data, field
from elastic._host import numa
from elastic.multiprocessing import signals
from elastic.multiprocessing.errors.evidence import ProcessFailure
from elastic.multiprocessing.logs_specs import LogsSpecs, destinations
from elastic.torch_compat.processes.tail_log import tail_logs

POLL_S = 0.05  # where the kernel cannot report the end of a process


@data
class RunProcsResult:
    """By local rank. Processes that were stopped because another failed are not failures."""

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return len(self.failures) > 0


class PContext(ABC):
    """Processes by local rank. ``args`` and ``envs`` name the same ranks, 0 to n-1."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        numa_options: Any = None,
    ) -> None:
        ranks = set(range(len(args)))
        for what, given in (("args", args), ("envs", envs)):
            if set(given) != ranks:
                raise RuntimeError(f"{what} has local ranks {sorted(given)}: expected {len(args)}, "
                                   "from 0")  # fmt: skip
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.nprocs = len(args)
        self.logs_specs = logs_specs  # kept: it may own a temporary directory
        dest = destinations(logs_specs, envs)
        self.stdouts = dest.stdouts
        self.stderrs = dest.stderrs
        self.error_files = dest.error_files
        self._numa_options = numa_options
        self._return_values: dict[int, Any] = {}
        self._ended: RunProcsResult | None = None
        self._tail_logs = tail_logs(
            name, dest, log_line_prefixes, duplicate_stdout_filters, duplicate_stderr_filters
        )

    def start(self) -> None:
        """Starts all processes, once; if one cannot be started, none is left.

        In the main thread signals then raise SignalException.
        """
        signals.handle()
        PContext._launch(self)

    def _launch(self) -> None:
        if getattr(self, "_has_started", False):
            raise ValueError(f"the processes of {self.name} were started already")
        self._has_started = True
        try:
            with signals.deferred():
                self._start()
            for tail in self._tail_logs:
                tail.start()
        except BaseException:
            self.close()
            raise

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """The result; None if the processes still run after ``timeout`` seconds.

        0 looks once, a negative timeout waits without limit. ``period`` has no effect: the call
        returns when the last process has ended or the first one has failed.
        """
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while self._ended is None:
            self._ended = self._poll()
            left = None if deadline is None else deadline - time.monotonic()
            if self._ended is not None or (left is not None and left <= 0):
                break
            awaited = self._awaited()
            if awaited is None:
                left = POLL_S if left is None else min(left, POLL_S)
            connection.wait(awaited or [], left)
        return self._ended

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """Stops the processes: signal, ``timeout`` seconds, SIGKILL; then writes all output."""
        self._close(death_sig or signal.SIGTERM, timeout)
        for tail in self._tail_logs:
            tail.stop()

    @abstractmethod
    def pids(self) -> dict[int, int]:
        """Process ids by local rank."""

    @abstractmethod
    def _start(self) -> None:
        """Starts all processes."""

    @abstractmethod
    def _exit_codes(self) -> dict[int, int | None]:
        """The exit code of each process by local rank, as in ``subprocess``; None: it runs."""

    @abstractmethod
    def _awaited(self) -> list[Any] | None:
        """Objects that become readable when ``_poll`` should be called again; None to poll."""

    @abstractmethod
    def _close(self, death_sig: signal.Signals, timeout: float) -> None:
        """Stops all processes that still run."""

    def _worker_cpus(self) -> list[list[int]]:
        environment = _environment.inherited() | self.envs.get(0, {})
        return numa.worker_cpus(self._numa_options, self.nprocs, environment, sys.executable)

    def _poll(self) -> RunProcsResult | None:
        """The result if all processes have ended or one has failed; then the rest is stopped."""
        codes = self._exit_codes()
        failures = {
            rank: ProcessFailure(rank, self.pids()[rank], code, self.error_files.get(rank, ""))
            for rank, code in codes.items()
            if code
        }
        if not failures and None in codes.values():
            return None
        self.close()
        values = {} if failures else {rank: self._return_values.get(rank) for rank in codes}
        return RunProcsResult(values, failures, self.stdouts, self.stderrs)
