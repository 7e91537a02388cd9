"""The program of the template process: imports modules, then forks workers on request.

    PYTHON -u template.py MODULES SCRIPT ARGUMENT...
    PYTHON -u template.py MODULES -m MODULE ARGUMENT...

MODULES is a list with commas; "" stands for the default. The guardian starts it with a socket as
descriptor 3 (csrc/guardian/template.h). It imports and never computes: after a parallel operation
here, one in a forked process could hang.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

# Nothing of elastic stays among the modules: the workers import their own.
_FLAGS = sys.orig_argv.index(sys.argv[0])
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from elastic._site import elastic_hook  # noqa: E402
from elastic._warm import child, fitness, learning, link, native, ranks, script  # noqa: E402
from elastic._warm._fork import fork_orphan as _fork_orphan  # noqa: E402
from elastic._warm.printed import Printed  # noqa: E402

del sys.path[0]

# What a first training step imports.
DEFAULT_MODULES = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo")

# A process that imports for longer is killed by SIGALRM.
IMPORT_LIMIT_S = 600

# Read by the interpreter at its start, or by libraries when they are imported.
_READ_EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
               "TORCH_LOGS", "TORCH_SHOW", "TORCHDYNAMO", "TORCHINDUCTOR", "PYTORCH_", "LC_",
               "LANG", "TZ")  # fmt: skip
_SET_HERE = "OMP_NUM_THREADS"
# While modules are imported, unless the user set it: pyarrow's allocator starts no thread.
_ARROW, _NO_THREAD = "JE_ARROW_MALLOC_CONF", "background_thread:false"

_exit, _pipe = os._exit, os.pipe


class Template:
    """The state after the imports."""

    def __init__(self, connection: link.Link, excluded: list[str]) -> None:
        self._link = connection
        self._excluded = excluded  # not fit, or different in each rank
        self._program = sys.argv[2:]
        self._modules = sys.argv[1]
        self._command_line = native.CommandLine()
        self._reports_leaks = False  # at the end of the interpreter
        self._openblas: list[Callable[[int], Any]] = []
        self._started_with = _initial_environment()
        self._names = learning.Names(os.environ.pop(_LEARNS, ""))
        self._successor: learning.Successor | None = None
        self._printed = Printed()

    def prepare(self) -> None:
        """Imports the modules. Ends the process if one of them makes it unfit."""
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.close(null)
        self._printed.begin()
        sys.argv[:] = self._program
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, child.search_path(self._program))
        self._begin_imports()
        state = fitness.Snapshot(self._printed)
        if reason := state.change():
            self._end_unfit(f"the interpreter's start {reason}")
        if self._modules:
            for name in self._modules.split(","):
                if name in self._excluded:
                    continue
                self._import((name,), state)
                state = fitness.Snapshot(self._printed)
        else:
            self._import_default(state)
        self._settle()

    def _begin_imports(self) -> None:
        signal.alarm(IMPORT_LIMIT_S)
        gc.disable()
        os.environ.setdefault(_ARROW, _NO_THREAD)

    def _settle(self) -> None:
        """After all imports."""
        signal.alarm(0)
        self._printed.settle()
        if os.fsencode(_ARROW) not in self._started_with:
            os.environ.pop(_ARROW, None)
        elastic_hook.prepare()
        self._watch = fitness.Files()
        self._own_modules = child.own_modules()
        self._openblas = list(native.openblas_setters())
        self._additions = {
            name: value for name, value in os.environb.items() if name not in self._started_with
        }
        self._reports_leaks = child.reports_leaks()
        gc.enable()
        gc.collect()
        gc.freeze()
        native.use_huge_pages()

    def _import_default(self, state: fitness.Snapshot) -> None:
        if _is_installed("torch"):
            self._import(DEFAULT_MODULES, state)
        for name in script.imports(self._program):
            if name not in sys.modules and name not in self._excluded:
                state = fitness.Snapshot(self._printed)
                self._import((name,), state, is_given=False)

    def _import(
        self, names: tuple[str, ...], state: fitness.Snapshot, is_given: bool = True
    ) -> None:
        label = names[0]
        known = set(sys.modules)
        with ranks.noted() as reads:
            self._import_all(names, state, is_given)
        if change := state.change():
            self._reject(label, f"the import of {label} {change}", state, is_given)
        if computed := ranks.computed(
            label, reads, [name for name in sys.modules if name not in known]
        ):
            self._reject(label, f"the import of {label} {computed}", state, is_given=False)
        if failure := fitness.trial(self._set_threads):
            self._reject(label, f"after the import of {label}, {failure}", state, is_given)

    def _import_all(self, names: tuple[str, ...], state: fitness.Snapshot, is_given: bool) -> None:
        for name in names:
            self._link.send(link.IMPORTING, name)
            try:
                importlib.import_module(name)
            except BaseException as error:
                reason = _failure(name, error)
                self._reject(name, reason, state, is_given)
                raise  # not reached: this process has ended

    def _reject(self, name: str, reason: str, state: fitness.Snapshot, is_given: bool) -> None:
        if is_given:
            self._end_unfit(reason)
        self._link.send(link.LEFT_OUT, reason)
        # This process is no longer fit; its successor does not import the module.
        state.restore()
        for number in signal.valid_signals():
            if signal.getsignal(number) not in (signal.SIG_DFL, None):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        arguments = [*sys.orig_argv[:_FLAGS], __file__, self._modules, *self._program]
        environment = dict(self._started_with)
        environment[os.fsencode(_EXCLUDED)] = os.fsencode(",".join([*self._excluded, name]))
        os.set_inheritable(link.SOCKET, True)
        os.execve(sys.executable, arguments, environment)

    def _end_unfit(self, reason: str) -> None:
        self._link.send(link.UNFIT, reason)
        _exit(0)

    def _set_threads(self, count: int) -> None:
        child.set_threads(count, native.openblas_setters())

    def serve(self) -> link.Request:
        """Forks workers until the guardian ends. Returns in each worker, with its request."""
        self._link.send(link.READY)
        is_checked = False
        while True:
            # The workers of a round are requested together: one check of the files serves them all.
            is_checked = is_checked and self._link.has_request()
            self._wait()
            request = self._link.receive()
            if request is None:
                _exit(0)
            if not is_checked and (file := self._watch.changed()):
                self._link.send(link.STALE, file)
                _exit(0)
            is_checked = True
            if reason := self._refusal(request):
                self._link.send(link.REFUSED, reason, id=request.id)
            elif self._fork(request):
                return request
            for number in (request.pipe, *request.descriptors.values()):
                os.close(number)

    def _wait(self) -> None:
        """Until there is a request. Meanwhile a successor may import what a worker has imported."""
        while True:
            successor = self._successor
            news = successor.fileno() if successor else -1
            ready = learning.wait_for_input(link.SOCKET, self._names.fileno(), news)
            if link.SOCKET in ready:
                return
            if successor is not None and news in ready:
                name, reason, is_done = successor.read()
                if is_done:
                    successor.give_place()
                if name:
                    if successor.leave_out_next(name, reason):
                        self._link.send(link.LEFT_OUT, reason)
                    self._start_successor(successor)
            elif self._names.fileno() in ready:
                names = [name for name in self._names.receive() if self._is_missing(name)]
                if names:
                    self._start_successor(learning.Successor(names))

    def _is_missing(self, name: str) -> bool:
        is_known = name in sys.modules or name in self._excluded
        return not is_known and script.is_installed(name)

    def _start_successor(self, successor: learning.Successor) -> None:
        """Returns in this process, and in the successor once it is to serve."""
        self._successor = successor if len(successor.left_out) <= learning.LEFT_OUT_MAX else None
        if self._successor is not None and successor.start(self._learn):
            self._successor = None
            self._link.send(link.READY)

    def _learn(self, successor: learning.Successor) -> None:
        """Imports the modules in the successor, which ends if one of them is not fit."""
        native.end_with_parent(signal.SIGKILL)
        self._names.close()
        self._printed.begin()
        self._begin_imports()
        for name in successor.names:
            if name in sys.modules:
                continue
            successor.begin(name)
            state = fitness.Snapshot(self._printed)
            known = set(sys.modules)
            with ranks.noted() as reads:
                try:
                    importlib.import_module(name)
                except BaseException as error:
                    successor.leave_out(name, _failure(name, error))
                    raise  # not reached: this process has ended
            brought = [module for module in sys.modules if module not in known]
            if change := state.change() or ranks.computed(name, reads, brought):
                successor.leave_out(name, f"the import of {name} {change}")
            if failure := fitness.trial(self._set_threads):
                successor.leave_out(name, f"after the import of {name}, {failure}")
        self._settle()

    def _refusal(self, request: link.Request) -> str:
        """Why the worker must be executed, or an empty string."""
        program = request.argv[_FLAGS:]
        if request.argv[:_FLAGS] != sys.orig_argv[:_FLAGS] or not program:
            return f"its command does not begin with {' '.join(sys.orig_argv[:_FLAGS])}"
        if program[0].startswith("-") and program[0] != "-m":
            return f"the template process does not support the option {program[0]}"
        if program[0].endswith(".pyc"):
            return "its script is a compiled file"
        for name in self._started_with.keys() | request.env.keys():
            if self._started_with.get(name) == request.env.get(name):
                continue
            variable = os.fsdecode(name)
            if variable.startswith(_READ_EARLY) and variable != _SET_HERE:
                return (
                    f"its variable {variable} differs, which is read at the start or at an import"
                )
            if module := ranks.DEVICES_READ.get(variable):
                return f"its variable {variable} differs, which {module} read when it was imported"
        return ""

    def _fork(self, request: link.Request) -> bool:
        """Forks a child of the guardian, a subreaper. True in the worker.

        The worker waits until the guardian, which receives its pid and the pipe in one message,
        releases it. This process may be killed at any time.
        """
        release, release_end = _pipe()
        try:
            pid = _fork_orphan()
        except OSError as error:
            self._link.send(link.REFUSED, f"fork failed: {error.strerror}", id=request.id)
            pid = -1
        if pid == 0:
            os.setsid()
            os.close(release_end)
            if os.read(release, 1) != b"r":  # the guardian does not know this process
                _exit(1)
            return True
        os.close(release)
        if pid > 0:
            self._link.send(link.FORKED, id=request.id, pid=pid, descriptor=release_end)
        os.close(release_end)
        return False

    def become(self, request: link.Request) -> None:
        """Turns a forked process into the worker."""
        self._link.forget()  # a file of the script may get this number later
        self._names.forget()
        try:
            child.set_up(request)
        except child.StartError:
            _exit(127)
        child.set_environment(request, self._additions)
        child.set_arguments(_FLAGS, request)
        program = request.argv[_FLAGS:]
        child.renew_streams()
        child.check_script(program)
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = child.search_path(program)
        child.refresh_modules()
        child.set_threads(child.thread_count(request.env), self._openblas)
        self._command_line.write(request.argv)
        child.begin_reports()
        self._printed.repeat()

    def run(self, request: link.Request) -> None:
        """Runs the worker's program."""
        if self._reports_leaks:
            atexit.register(gc.unfreeze)
        child.run(request.argv[_FLAGS:], self._own_modules)


_EXCLUDED = "ELASTIC_TEMPLATE_EXCLUDED"
_LEARNS = "ELASTIC_FIRST_STEP_MODULES"  # the address to which a worker sends names of modules


def _failure(name: str, error: BaseException) -> str:
    what = str(error) if isinstance(error, ModuleNotFoundError) else repr(error)
    return f"cannot import {name} ({what})"


def _initial_environment() -> dict[bytes, bytes]:
    """As this process was started, before the interpreter and the imports added variables."""
    with open("/proc/self/environ", "rb") as file:
        entries = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        return {name: value for name, _, value in entries if name != os.fsencode(_EXCLUDED)}


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def main() -> None:
    excluded = os.environ.pop(_EXCLUDED, "")
    template = Template(link.Link(), excluded.split(",") if excluded else [])
    template.prepare()
    request = template.serve()
    template.become(request)
    template.run(request)


if __name__ == "__main__":
    main()
