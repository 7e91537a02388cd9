"""Makes a forked process what a fresh ``python script.py`` or ``python -m module`` is."""

from __future__ import annotations

import builtins
import fcntl
import importlib
import io
import logging
import os
import random
import signal
import struct
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from elastic._site import elastic_hook, sitecustomize
from elastic._warm import native, ranks
from elastic._warm.link import Request

EXIT_NO_SCRIPT = 2

# As guardian::Stage and guardian::StartFailure.
_STAGE_OPEN, _STAGE_CHDIR = 2, 3
_FAILURE = struct.Struct("B3xii")
_NO_INDEX = -1

_OWN_FILES = os.path.dirname(os.path.abspath(__file__)) + os.sep


class StartError(Exception):
    """The worker cannot start; the guardian has received the reason."""


def set_up(request: Request) -> None:
    """The kernel's part: parent-death signal, descriptors, directory. The session exists already.

    Raises StartError.
    """
    native.end_with_parent(signal.SIGKILL)
    if os.getppid() != request.guardian:
        raise StartError
    pipe = _take_descriptors(request)
    for target, path in ((1, request.stdout_path), (2, request.stderr_path)):
        if path:
            _run_step(pipe, _STAGE_OPEN, target, partial(_open_output, path, target))
    if request.cwd:
        _run_step(pipe, _STAGE_CHDIR, _NO_INDEX, partial(os.chdir, request.cwd))
    os.close(pipe)


def _take_descriptors(request: Request) -> int:
    """Gives the worker its descriptors and closes all others; the exec pipe's new number."""
    beyond = max(request.descriptors) + 1
    moved = {
        target: fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, beyond)
        for target, number in request.descriptors.items()
    }
    pipe = fcntl.fcntl(request.pipe, fcntl.F_DUPFD_CLOEXEC, beyond)
    kept = {pipe, *moved.values()}
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            try:
                os.close(number)
            except OSError:  # the descriptor of the listing itself
                continue
    for target, number in moved.items():
        os.dup2(number, target)
        os.close(number)
    return pipe


def _run_step(pipe: int, stage: int, index: int, step: Callable[[], None]) -> None:
    """Runs a step that may block, and reports its begin and its failure."""
    os.write(pipe, _FAILURE.pack(stage, 0, index))
    try:
        step()
    except OSError as error:
        os.write(pipe, _FAILURE.pack(stage, error.errno or 0, index))
        raise StartError from error


def _open_output(path: str, target: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    opened = os.open(path, flags, 0o644)
    os.dup2(opened, target)
    os.close(opened)


def set_environment(request: Request, additions: dict[bytes, bytes]) -> None:
    """``additions``: the variables that the interpreter's start and the imports have added."""
    wanted = {**additions, **request.env}
    for name in [name for name in os.environb if name not in wanted]:
        del os.environb[name]
    for name, value in wanted.items():
        if os.environb.get(name) != value:
            os.environb[name] = value


def refresh_modules() -> None:
    """What modules have computed at import for one process."""
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    random.seed()
    for generator in ranks.UNSEEDED:
        generator.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    for name, compute in ranks.COMPUTED_AGAIN.items():
        module: Any = sys.modules.get(name)
        if module is not None:
            module.rank_zero_only.rank = compute(module)
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # it depends on TMPDIR


def set_threads(count: int, openblas: list[Callable[[int], Any]]) -> None:
    """As OMP_NUM_THREADS does before the libraries are loaded."""
    for setter in openblas:
        setter(count)
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)


def thread_count(environ: dict[bytes, bytes]) -> int:
    text = environ.get(b"OMP_NUM_THREADS", b"").partition(b",")[0].strip()
    return int(text) if text.isdigit() and int(text) > 0 else len(os.sched_getaffinity(0))


def renew_streams() -> None:
    """New objects for the standard streams, as the interpreter makes them at its start."""
    old = {stream: name for name in ("stdin", "stdout", "stderr") if (stream := getattr(sys, name))}
    for stream, name in old.items():
        new = _open_stream(name, stream)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        for reference in logging._handlerList:  # type: ignore[attr-defined]
            handler = reference()
            if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                handler.stream = new
    # Other objects may hold the old ones, which must not be closed: they share the descriptors.
    _old_streams.extend(old)


_old_streams: list[Any] = []


def _open_stream(name: str, old: Any) -> io.TextIOWrapper:
    number = ("stdin", "stdout", "stderr").index(name)
    mode = "r" if number == 0 else "w"
    is_unbuffered = number > 0 and old.write_through  # -u, PYTHONUNBUFFERED
    buffering = 0 if is_unbuffered else -1
    binary: Any = open(number, mode + "b", buffering, closefd=False)  # noqa: SIM115
    raw = binary if is_unbuffered else binary.raw
    raw.name = f"<{name}>"
    by_lines = not old.write_through and (raw.isatty() or number == 2)
    stream = io.TextIOWrapper(
        binary, old.encoding, old.errors, "\n", by_lines, write_through=old.write_through
    )
    stream.mode = mode  # type: ignore[misc]
    return stream


def set_arguments(flags: int, request: Request) -> None:
    """``flags``: the number of arguments before the script or ``-m``."""
    sys.orig_argv[:] = request.argv
    sys.argv[:] = request.argv[flags:]
    if sys.argv[0] == "-m":
        del sys.argv[1]
        sys.argv[0] = "-m"


def search_path(program: list[str]) -> str:
    """The first entry of ``sys.path`` for a script or ``-m module``."""
    if program[0] == "-m":
        return os.getcwd()
    if _is_archive(program[0]):
        return os.path.join(os.getcwd(), program[0])
    return os.path.dirname(os.path.realpath(program[0]))


def own_modules() -> list[str]:
    """The loaded modules of elastic. The script imports its own.

    The list is made before the fork: in a worker, a look at the name of every module copies a
    thousand pages.
    """
    return [name for name in sys.modules if name == "elastic" or name.startswith("elastic.")]


def begin_reports() -> None:
    """As in an executed worker, whose interpreter imports ``sitecustomize`` at its start."""
    if not sys.flags.ignore_environment and not sys.flags.no_site and sitecustomize.restore():
        elastic_hook.begin()


def reports_leaks() -> bool:
    """Whether nanobind is loaded (triton has it): it prints each of its objects that is left when
    the interpreter ends, and frozen ones are. Elsewhere they stay frozen: that saves a second.
    """
    return any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type))


def run(program: list[str], unloaded: list[str]) -> None:
    """Runs a script or ``-m module`` as ``__main__``. The interpreter handles its exceptions.

    ``unloaded``: the modules that it must not find.
    """
    for name in unloaded:
        del sys.modules[name]
    if "elastic.worker" in unloaded:  # a preloaded module holds it: now it has a channel to open
        importlib.import_module("elastic.worker")
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # an alias that multiprocessing makes at import
        sys.modules["__mp_main__"] = main
    vars(main).update(__builtins__=builtins, __annotations__={})
    try:
        if program[0] == "-m":
            main.__loader__ = None
            _runpy()._run_module_as_main(program[1])
        elif _is_archive(program[0]):
            _runpy()._run_module_as_main("__main__", False)
        else:
            _run_script(main, program[0])
    except BaseException:
        _hide_own_frames()
        raise


def _runpy() -> Any:
    import runpy

    return runpy


def _is_archive(path: str) -> bool:
    """Whether it is a folder or a zip file with a ``__main__``."""
    if path.endswith(".py") or not os.path.exists(path):
        return False
    import pkgutil

    return pkgutil.get_importer(path) is not None


def _run_script(main: ModuleType, script: str) -> None:
    path = script if os.path.isabs(script) else os.path.join(os.getcwd(), script)
    vars(main).update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def check_script(program: list[str]) -> None:
    """Ends the process as the interpreter does if there is no script."""
    if program[0] == "-m":
        return
    path = os.path.join(os.getcwd(), program[0])
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        sys.stderr.write(
            f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] "
            f"{error.strerror}\n"
        )
        os._exit(EXIT_NO_SCRIPT)


def _hide_own_frames() -> None:
    """Removes this package's frames from the traceback that the interpreter prints."""
    hook = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            trace = trace.tb_next
        sys.excepthook = hook
        sys.last_traceback = error.__traceback__ = trace
        hook(kind, error, trace)

    sys.excepthook = excepthook
