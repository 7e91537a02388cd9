"""Processes that call a Python function."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from elastic import _environment
from elastic.multiprocessing import signals
from elastic.multiprocessing.errors.child_failed_error import record
from elastic.multiprocessing.errors.error_handler import get_error_handler
from elastic.multiprocessing.logs_specs import LogsSpecs
from elastic.torch_compat.processes.process_context import PContext
from elastic.torch_compat.processes.redirects import redirect


def _run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    env: dict[str, str],
    stdout: str,
    stderr: str,
    cpus: list[int],
    answer: Connection,
    starter: int | Connection,
) -> None:
    """Runs in the child: sends the return value, and waits until it was received."""
    signals.forget()
    if isinstance(starter, int):
        signals.end_with(starter)
    else:
        signals.end_with_writer(starter)
    _environment.update(env)
    if cpus:
        os.sched_setaffinity(0, cpus)
    with ExitStack() as redirected:
        if stdout:
            redirected.enter_context(redirect("stdout", stdout))
        if stderr:
            redirected.enter_context(redirect("stderr", stderr))
        try:
            value = record(function)(*args)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
        except Exception:
            import traceback

            traceback.print_exc()
            raise SystemExit(1) from None
        try:
            answer.send(value)
        except Exception as error:
            get_error_handler().record_exception(error)
            raise
        try:
            answer.recv_bytes()
        except EOFError:
            return


# The ends of pipes with which children of a fork server end.
_lives: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_lives() -> None:
    for life in tuple(_lives):
        life.close()


os.register_at_fork(after_in_child=_forget_lives)  # a copy does not keep them alive


class MultiprocessContext(PContext):
    """``start_method``: as in Python's ``multiprocessing``."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: Mapping[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        more = duplicate_stdout_filters, duplicate_stderr_filters, numa_options
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes, *more)
        self._function = entrypoint
        self.start_method = start_method
        self._context: Any = multiprocessing.get_context(start_method)
        self._processes: dict[int, Any] = {}
        self._running: list[Any] = []  # as of the last _exit_codes()
        self._answers: dict[int, Connection] = {}

    def _start(self) -> None:
        cpus = self._worker_cpus()
        for rank in range(self.nprocs):
            ours, theirs = self._context.Pipe()
            starter: Any = os.getpid()
            life: Connection | None = None
            if self.start_method == "forkserver":  # the parent is a server, which outlives us
                starter, life = self._context.Pipe(duplex=False)
                _lives.add(life)
            process = self._context.Process(
                target=_run,
                name=f"{self.name}{rank}",
                args=(
                    self._function,
                    self.args[rank],
                    self.envs[rank],
                    self.stdouts.get(rank, ""),
                    self.stderrs.get(rank, ""),
                    cpus[rank],
                    theirs,
                    starter,
                ),
            )
            self._answers[rank] = ours
            with theirs:
                process.start()
            self._processes[rank] = process
            if life is not None:
                starter.close()
                process.life = life  # open until the child ends: the library keeps the object

    def _exit_codes(self) -> dict[int, int | None]:
        for rank, answer in list(self._answers.items()):
            if answer.poll():
                self._receive(rank, answer)
        codes = {rank: process.exitcode for rank, process in self._processes.items()}
        self._running = [self._processes[rank] for rank, code in codes.items() if code is None]
        return codes

    def _receive(self, rank: int, answer: Connection) -> None:
        try:
            self._return_values[rank] = answer.recv()
            answer.send_bytes(b"")
        except (EOFError, OSError):  # it ended without a value
            pass
        answer.close()
        del self._answers[rank]

    def _awaited(self) -> list[Any]:
        # Not by exitcode: a process that has ended since _exit_codes() must end the wait.
        return [*(process.sentinel for process in self._running), *self._answers.values()]

    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in self._processes.items()}

    def _close(self, death_sig: signal.Signals, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        running = [p for p in self._processes.values() if p.is_alive()]
        for process in running:
            os.kill(process.pid, death_sig)
        for process in running:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        for answer in self._answers.values():
            answer.close()
        self._answers.clear()
