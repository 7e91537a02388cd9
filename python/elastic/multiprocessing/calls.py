"""Calls of a Python function in worker processes: their arguments and return values.

The call of each local rank is pickled once, before anything starts, into a temporary file without a
name, so that none is left if this process is killed. ``function_worker.py`` runs in the worker,
reads the call, calls the function and writes the value into a second such file. It opens them by
way of ``/proc/PID/fd`` of this process. Queues, events and locks are passed as to a process of
``multiprocessing`` with the spawn method: semaphores by name, pipes as the files.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import stat
import sys
import tempfile
from collections import ChainMap
from collections.abc import Callable, Mapping
from multiprocessing import context, process, reduction, spawn, synchronize, util
from typing import IO, Any

from elastic.errors import ConfigError
from elastic.multiprocessing import function_worker

_RUNNING_BY_PATH = function_worker.__file__


def interpreter() -> list[str]:
    """The beginning of the workers' command."""
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [spawn.get_executable(), *flags, "-u"]


class CannotPass(ConfigError):
    """The function or an argument cannot be passed to a new interpreter, only to a forked one."""


class FunctionCalls:
    """The calls of one function by local rank. ``close`` frees the files."""

    def __init__(self, function: Callable[..., Any], args: Mapping[int, tuple[Any, ...]]) -> None:
        self._descriptors: list[int] = []  # of pipes
        self._files: dict[int, tuple[IO[bytes], IO[bytes]]] = {}  # the call and the value
        try:
            for local_rank, arguments in args.items():
                self._write(local_rank, function, arguments)
        except BaseException:
            self.close()
            raise

    def argv(self, local_rank: int) -> list[str]:
        """The command of a worker."""
        paths = (_path(file.fileno()) for file in self._files[local_rank])
        return [*interpreter(), _RUNNING_BY_PATH, *paths]

    def value(self, local_rank: int, round_number: int) -> Any:
        """The function's return value in that round; None if it ended with ``SystemExit(0)``."""
        # The worker has opened the file itself. This process may have no free descriptor.
        with open(self._files[local_rank][1].fileno(), "rb", closefd=False) as file:
            file.seek(0)
            number = file.read(function_worker.ROUND.size)
            if number != function_worker.ROUND.pack(round_number):
                return None  # there is no value, or it is from an earlier round
            return pickle.load(file)

    def close(self) -> None:
        for files in self._files.values():
            for file in files:
                file.close()
        self._files.clear()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _write(self, local_rank: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        preparation = spawn.get_preparation_data(f"elastic-{local_rank}")
        if not os.path.isfile(preparation.get("init_main_from_path", "")):  # as "<stdin>"
            preparation.pop("init_main_from_path", None)
        preparation["authkey"] = bytes(process.current_process().authkey)
        pickled = self._pickled(function, args)
        call = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes both
        self._files[local_rank] = (call, tempfile.TemporaryFile())  # noqa: SIM115
        pickle.dump(preparation, call)
        call.write(pickled)
        call.flush()

    def _pickled(self, function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
        context.set_spawning_popen(self)  # type: ignore[arg-type]  # duck-typed, as in the stdlib
        try:
            if _is_only_here(function):
                return self._pickled_by_value((function, args), None)
            buffer = io.BytesIO()
            try:
                _CallPickler(buffer, _name_of(function)).dump((function, args))
            except Exception as error:  # whatever a program's own reduction raises
                if isinstance(error, CannotPass):
                    raise
                return self._pickled_by_value((function, args), error)
            return buffer.getvalue()
        finally:
            context.set_spawning_popen(None)

    def _pickled_by_value(self, call: tuple[Any, ...], reason: Exception | None) -> bytes:
        name = _name_of(call[0])
        why = f"{name} and its arguments cannot be pickled: {reason}"
        if reason is None:
            why = f"{name} is defined in a __main__ without a file, which workers cannot import"
        try:
            import cloudpickle
        except ImportError:
            raise CannotPass(
                f"{why}; move it to a module, or install cloudpickle "
                "(pip install elastic-launch[cloudpickle])"
            ) from reason
        buffer = io.BytesIO()
        # The C class reads its table once, when a pickler is made.
        table = ChainMap(
            reduction.ForkingPickler._extra_reducers,  # type: ignore[attr-defined]
            cloudpickle.Pickler.dispatch_table,
        )

        class CallPickler(cloudpickle.Pickler):  # type: ignore[misc]
            dispatch_table = table

            def reducer_override(self, value: Any) -> Any:
                _check_context(value, name)
                return super().reducer_override(value)

        pickler = CallPickler(buffer, pickle.HIGHEST_PROTOCOL)
        try:
            pickler.dump(call)
        except CannotPass:
            raise
        except Exception as error:
            raise CannotPass(f"{name} and its arguments cannot be pickled: {error}") from error
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
        return _PipeOfLauncher(_path(descriptor), flags)


def _path(descriptor: int) -> str:
    """A path by which workers open this process's descriptor again."""
    # Not getpid(): /proc may belong to another process id namespace.
    return f"/proc/{os.readlink('/proc/self')}/fd/{descriptor}"


class _PipeOfLauncher:
    """An end of a pipe of the launching process; ``detach`` opens it in a worker."""

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        self._flags = flags

    def detach(self) -> int:
        opened = os.open(self._path, self._flags | os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(opened, True)
        return opened


class _CallPickler(reduction.ForkingPickler):
    def __init__(self, file: IO[bytes], function_name: str) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._function_name = function_name

    def reducer_override(self, value: Any) -> Any:
        _check_context(value, self._function_name)
        return NotImplemented


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _check_context(value: Any, function_name: str) -> None:
    """Refuses a semaphore without a name, which only a forked process has. Versions of Python until
    3.11.4 pass its address, and the worker crashes."""
    semaphore = getattr(value, "_semlock", None) if isinstance(value, synchronize.SemLock) else None
    if semaphore is not None and semaphore.name is None:
        raise CannotPass(
            f"{function_name} is passed a lock, event or queue that was created in a fork context; "
            "create it with multiprocessing.get_context('spawn'), or use start_method='fork'"
        )


def _is_only_here(function: Callable[..., Any]) -> bool:
    """Whether a function is in a ``__main__`` that other processes cannot run again."""
    if getattr(function, "__module__", None) != "__main__":
        return False
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return False
    path = getattr(main, "__file__", None)
    return path is None or not os.path.isfile(path)
