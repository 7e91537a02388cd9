"""Whether a process that has imported a module may fork workers.

A worker must not differ from a fresh process, apart from the modules that it has. A module that
starts a thread, opens a descriptor or changes the state of the process at import makes the
template unfit. A ``Snapshot`` is taken before an import; ``change`` describes the first
difference. Later ``Files`` tells whether a module's file was changed after its import.
"""

from __future__ import annotations

import gc
import locale
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from elastic._warm import native
from elastic._warm.printed import Printed

TRIAL_LIMIT_S = 2.0
_TRIAL = "a forward and a backward pass"

# Their functions must not be replaced.
_WATCHED = ("builtins", "io", "os", "posix", "random", "select", "signal", "socket", "subprocess",
            "_thread", "threading", "time", "sys")  # fmt: skip
_HOOKS = ("excepthook", "displayhook", "unraisablehook", "breakpointhook", "stdin", "stdout",
          "stderr")  # fmt: skip
# How many numbers of 32 bits a module may draw from `random` when it is imported.
_DRAWS_MAX = 100_000
_HARMLESS_MAPS = ("/dev/zero", "/dev/shm/")
# What a module may print when it is imported.
_PRINTED_MAX = 64 << 10

_fork, _exit, _waitpid, _kill, _getpid = os.fork, os._exit, os.waitpid, os.kill, os.getpid
_stat = os.stat


class Snapshot:
    """The state of the process that an import should not change."""

    def __init__(self, printed: Printed) -> None:
        self._printed = printed
        self._pid = os.getpid()
        self._written = printed.size()
        self._descriptors = set(_descriptors())
        self._environment = dict(os.environb)
        self._functions = dict(_functions())
        self._values = dict(_values())
        self._random = random.getstate()
        self._numpy_random, self._torch_random = _numpy_random(), _torch_random()

    def change(self) -> str:
        """What has changed, as the predicate of a sentence; empty: nothing."""
        if _getpid() != self._pid:  # the module forked, and this is the child
            _exit(0)
        try:
            return next(self._changes(), "")
        # A function that the checks need was replaced.
        except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            return f"broke the interpreter ({type(error).__name__}: {error})"

    def _changes(self) -> Iterator[str]:
        if _has_children():
            yield "left a child process"
        names = _thread_names()
        if len(names) > 1:
            yield f"left a thread ({', '.join(sorted(set(names[1:])))})"
        for descriptor, target in _descriptors().items():
            if descriptor not in self._descriptors:
                yield f"left the descriptor {descriptor} open ({target})"
        for path in _device_maps():
            yield f"mapped the device {path}"
        sys.stdout.flush()
        sys.stderr.flush()
        native.flush()  # text in a C stream's buffer would be printed by every worker again
        if self._printed.size() - self._written > _PRINTED_MAX:
            yield f"printed more than {_PRINTED_MAX >> 10} KiB"
        functions = dict(_functions())
        for name, function in self._functions.items():
            if functions.get(name) is not function:
                yield f"replaced {name}"
        values = dict(_values())
        for name, value in self._values.items():
            if values[name] != value:
                yield f"changed {name}"
        for variable, setting in self._environment.items():
            if os.environb.get(variable) != setting:
                yield f"changed the variable {os.fsdecode(variable)}"
        if not _has_only_drawn(self._random, random.getstate()):
            yield "changed the state of random"
        if self._numpy_random is not None and _numpy_random() != self._numpy_random:
            yield "changed the state of numpy.random"
        if self._torch_random is not None and _torch_random() != self._torch_random:
            yield "changed the state of torch.random"
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            yield "initialised CUDA"

    def restore(self) -> None:
        """Undoes what another program in this process would inherit."""
        for number in _descriptors():
            if number not in self._descriptors:
                os.close(number)
        for name, value in self._values.items():
            if name == "the working directory":
                os.chdir(value)
            elif name == "the umask":
                os.umask(value)
        for limit, value in _limits().items():
            if value != self._values["the resource limits"][limit]:
                resource.setrlimit(limit, self._values["the resource limits"][limit])


def trial(set_threads: Callable[[int], None]) -> str:
    """Computes in a child; the reason why it failed, or an empty string."""
    errors, errors_end = os.pipe()
    child = _fork()
    if child == 0:
        try:
            set_threads(2)
            _compute()
            _exit(0)
        finally:
            error = sys.exc_info()[1]
            os.write(errors_end, f"{type(error).__name__}: {error}".encode()[:500])
            _exit(1)
    os.close(errors_end)
    # End of file: the child has ended.
    ended = bool(select.select([errors], [], [], TRIAL_LIMIT_S)[0])
    if not ended:
        _kill(child, signal.SIGKILL)
    _, status = _waitpid(child, 0)
    text = os.read(errors, 500).decode(errors="replace")
    os.close(errors)
    if not ended:
        return f"a forked process did not finish {_TRIAL} within {TRIAL_LIMIT_S:g} s"
    if status != 0:
        return f"{_TRIAL} failed in a forked process: {text or os.waitstatus_to_exitcode(status)}"
    return ""


def _compute() -> None:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        matrix = numpy.ones((256, 256))
        matrix @ matrix
    if torch is None:
        return
    weights = torch.ones(256, 256, requires_grad=True)
    (weights @ weights).relu().sum().backward()


def _has_children() -> bool:
    try:
        _waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _thread_names() -> list[str]:
    """The calling thread first."""
    names = []
    for thread in sorted(map(int, os.listdir("/proc/self/task"))):
        with open(f"/proc/self/task/{thread}/comm", "rb") as file:
            names.append(os.fsdecode(file.read().strip()))
    return names


def _descriptors() -> dict[int, str]:
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing itself
            continue
    return found


def _device_maps() -> set[str]:
    with open("/proc/self/maps", "rb") as file:
        lines = map(os.fsdecode, file)
        paths = {line.split(None, 5)[5].strip() for line in lines if " /dev/" in line}
    return {path for path in paths if not path.startswith(_HARMLESS_MAPS)}


def _functions() -> Iterator[tuple[str, Any]]:
    """The functions and methods of the watched modules, by name."""
    for name in _WATCHED:
        for attribute, value in list(vars(sys.modules[name]).items()):
            if not callable(value) or attribute in _HOOKS:
                continue
            yield f"{name}.{attribute}", value
            if isinstance(value, type) and value.__module__ == name != "builtins":
                for method in dir(value):
                    yield f"{name}.{attribute}.{method}", _static(value, method)


def _static(kind: type, name: str) -> object:
    """The attribute of a class or of its first base that has it, unbound."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _values() -> Iterator[tuple[str, Any]]:
    for hook in _HOOKS:
        yield f"sys.{hook}", id(getattr(sys, hook))
    yield "sys.path", list(sys.path)
    yield "sys.argv", list(sys.argv)
    yield "the trace function", (sys.gettrace(), sys.getprofile())
    yield "the recursion limit", sys.getrecursionlimit()
    yield "the switch interval", sys.getswitchinterval()
    yield "the garbage collector's thresholds", gc.get_threshold()
    yield "the locale", locale.setlocale(locale.LC_ALL)
    yield "the default timeout of sockets", socket.getdefaulttimeout()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with open("/proc/self/status") as file:
        native = [line for line in file if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    yield "the handling of signals", (handlers, native)
    timers = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    yield "the timers of the process", [signal.getitimer(timer) for timer in timers]
    yield "the working directory", os.getcwd()
    mask = os.umask(0)
    os.umask(mask)
    yield "the umask", mask
    yield "the resource limits", _limits()
    yield "the CPU affinity", os.sched_getaffinity(0)
    yield "the priority", os.getpriority(os.PRIO_PROCESS, 0)
    yield "the user, group or session", (os.getresuid(), os.getresgid(), os.getsid(0), os.getpgrp())


def _limits() -> dict[int, tuple[int, int]]:
    kinds = {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    return {kind: resource.getrlimit(kind) for kind in kinds}


def _has_only_drawn(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Whether the generator of ``random`` took its new state by drawing numbers.

    Each worker has a generator with its own seed, as each fresh process has, so numbers that were
    drawn at the import do not matter. A module that sets a seed would give all workers the same.
    """
    *words, position = before[1]
    *words_after, position_after = after[1]
    if words == words_after:
        return bool(position <= position_after)
    generator = random.Random()
    generator.setstate(before)
    for _ in range(_DRAWS_MAX // len(words)):
        generator.getrandbits(32 * len(words))  # one block further, at the same position
        if generator.getstate()[1][:-1] == tuple(words_after):
            return True
    return False


def _numpy_random() -> object:
    module: ModuleType | None = sys.modules.get("numpy.random")
    if module is None:
        return None
    name, keys, *rest = module.get_state()
    return name, keys.tobytes(), rest


def _torch_random() -> object:
    module: ModuleType | None = sys.modules.get("torch")
    return None if module is None else module.random.get_rng_state().numpy().tobytes()


class Files:
    """The files of all modules, as they are when this object is made."""

    def __init__(self) -> None:
        paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        self._files = {
            path: state
            for path in paths
            if isinstance(path, str) and os.path.isabs(path) and (state := _state(path))
        }

    def changed(self) -> str:
        """The first file that has changed; "": none has."""
        return next((path for path, state in self._files.items() if _state(path) != state), "")


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        state = _stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


# Imported for `_WATCHED`: a module that is loaded later could be changed unnoticed.
assert subprocess and threading and time
