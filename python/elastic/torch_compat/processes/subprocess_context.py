"""Processes that execute a program."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from elastic._host import numa
from elastic.multiprocessing.logs_specs import LogsSpecs
from elastic.torch_compat.processes.process_context import PContext
from elastic.torch_compat.processes.subprocess_handler import (
    SubprocessHandler,
    get_subprocess_handler,
)


class SubprocessContext(PContext):
    """``subprocess_handlers`` has the processes by local rank. Return values are None."""

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        more = duplicate_stdout_filters, duplicate_stderr_filters, numa_options
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes, *more)
        self._program = entrypoint
        self._pidfds: dict[int, int] = {}
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}

    def _start(self) -> None:
        cpus = self._worker_cpus()
        for rank in range(self.nprocs):
            with numa.bound(cpus[rank]):
                outputs = self.stdouts.get(rank), self.stderrs.get(rank)
                handler = get_subprocess_handler(
                    self._program, self.args[rank], self.envs[rank], *outputs, rank
                )
            self.subprocess_handlers[rank] = handler
            # Before Linux 5.3, refused by a seccomp profile, or Python was built without it.
            with suppress(AttributeError, OSError):
                self._pidfds[rank] = os.pidfd_open(handler.proc.pid)

    def _exit_codes(self) -> dict[int, int | None]:
        codes = {rank: handler.proc.poll() for rank, handler in self.subprocess_handlers.items()}
        for rank, code in codes.items():
            if code is not None:
                self._forget(rank)
        return codes

    def _awaited(self) -> list[Any] | None:
        handlers = self.subprocess_handlers.items()
        running = {rank for rank, handler in handlers if handler.proc.returncode is None}
        return list(self._pidfds.values()) if self._pidfds.keys() >= running else None

    def pids(self) -> dict[int, int]:
        return {rank: handler.proc.pid for rank, handler in self.subprocess_handlers.items()}

    def _close(self, death_sig: signal.Signals, timeout: float) -> None:
        handlers = list(self.subprocess_handlers.values())
        deadline = time.monotonic() + timeout
        for handler in handlers:
            handler.close(death_sig)
        for handler in handlers:
            try:
                handler.proc.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                handler.close(signal.SIGKILL)
                handler.proc.wait()
        for rank in list(self._pidfds):
            self._forget(rank)

    def _forget(self, rank: int) -> None:
        descriptor = self._pidfds.pop(rank, None)
        if descriptor is not None:
            os.close(descriptor)
