"""Calls of a Python function in worker processes: their arguments and return values.

The call of each local rank is pickled once, before anything starts, into a private directory.
``function_worker.py`` runs in the worker, reads it, calls the function and writes the value into
the same directory. Queues, events and locks are passed as to a process of ``multiprocessing`` with
the spawn method: semaphores by name, pipes by way of ``/proc/PID/fd`` of this process.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import shutil
import stat
import sys
import tempfile
from collections import ChainMap
from collections.abc import Callable, Mapping
from multiprocessing import context, process, reduction, spawn, util
from typing import Any

from elastic.errors import ConfigError
from elastic.multiprocessing import function_worker

_RUNNING_BY_PATH = function_worker.__file__


def interpreter() -> list[str]:
    """The beginning of the workers' command."""
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [spawn.get_executable(), *flags, "-u"]


class FunctionCalls:
    """The calls of one function by local rank. ``close`` removes the files."""

    def __init__(self, function: Callable[..., Any], args: Mapping[int, tuple[Any, ...]]) -> None:
        self._descriptors: list[int] = []
        self._folder = tempfile.mkdtemp(prefix="elastic_call_")
        try:
            for local_rank, arguments in args.items():
                self._write(local_rank, function, arguments)
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> str:
        return self._folder

    def argv(self, local_rank: int) -> list[str]:
        """The command of a worker."""
        where = os.path.join(self._folder, str(local_rank))
        return [*interpreter(), _RUNNING_BY_PATH, where]

    def value(self, local_rank: int, round_number: int) -> Any:
        """The function's return value in that round; None if it ended with ``SystemExit(0)``."""
        path = function_worker.value_path(os.path.join(self._folder, str(local_rank)), round_number)
        if not os.path.exists(path):
            return None
        with open(path, "rb") as file:
            return pickle.load(file)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _write(self, local_rank: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        preparation = spawn.get_preparation_data(f"elastic-{local_rank}")
        if not os.path.isfile(preparation.get("init_main_from_path", "")):  # as "<stdin>"
            preparation.pop("init_main_from_path", None)
        preparation["authkey"] = bytes(process.current_process().authkey)
        call = self._pickled(function, args)
        with open(os.path.join(self._folder, str(local_rank)), "wb") as file:
            pickle.dump(preparation, file)
            file.write(call)

    def _pickled(self, function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
        context.set_spawning_popen(self)  # type: ignore[arg-type]  # duck-typed, as in the stdlib
        try:
            by_value = _is_only_here(function)
            if not by_value:
                buffer = io.BytesIO()
                try:
                    reduction.ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump((function, args))
                    return buffer.getvalue()
                except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
                    return self._pickled_by_value((function, args), error)
            return self._pickled_by_value((function, args), None)
        finally:
            context.set_spawning_popen(None)

    def _pickled_by_value(self, call: tuple[Any, ...], reason: Exception | None) -> bytes:
        name = getattr(call[0], "__qualname__", repr(call[0]))
        why = f"{name} and its arguments cannot be pickled: {reason}"
        if reason is None:
            why = f"{name} is defined in a __main__ without a file, which workers cannot import"
        try:
            import cloudpickle
        except ImportError:
            raise ConfigError(
                f"{why}; move it to a module, or install cloudpickle "
                "(pip install elastic-launch[cloudpickle])"
            ) from reason
        buffer = io.BytesIO()
        # The C class reads its table once, when a pickler is made.
        table = ChainMap(
            reduction.ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
            cloudpickle.Pickler.dispatch_table,
        )
        by_value = type("_Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
        pickler = by_value(buffer, pickle.HIGHEST_PROTOCOL)
        try:
            pickler.dump(call)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
            raise ConfigError(f"{name} and its arguments cannot be pickled: {error}") from error
        return buffer.getvalue()

    # The methods that multiprocessing.reduction calls on the process that is being started.

    def duplicate_for_child(self, descriptor: int) -> int:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise TypeError("only one-way pipes and queues can be passed, not sockets or files: "
                            "use multiprocessing.Pipe(duplex=False)")  # fmt: skip
        self._descriptors.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0))
        return self._descriptors[-1]

    @staticmethod
    def DupFd(descriptor: int) -> _PipeOfLauncher:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        return _PipeOfLauncher(os.getpid(), descriptor, flags)


class _PipeOfLauncher:
    """An end of a pipe of the launching process; ``detach`` opens it in a worker."""

    def __init__(self, pid: int, descriptor: int, flags: int) -> None:
        self._pid = pid
        self._descriptor = descriptor
        self._flags = flags

    def detach(self) -> int:
        path = f"/proc/{self._pid}/fd/{self._descriptor}"
        opened = os.open(path, self._flags | os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(opened, True)
        return opened


def _is_only_here(function: Callable[..., Any]) -> bool:
    """Whether a function is in a ``__main__`` that other processes cannot run again."""
    if getattr(function, "__module__", None) != "__main__":
        return False
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return False
    path = getattr(main, "__file__", None)
    return path is None or not os.path.isfile(path)
