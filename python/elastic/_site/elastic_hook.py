"""Begins the reports of a worker: its channel, its stacks, its steps, its collective operations.

No module of elastic stays loaded, and none but the extension is executed: the script may have a
package of the same name, and imports its own modules.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing costs more than this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

OPTIMIZER = "torch.optim.optimizer"
DISTRIBUTED = "torch.distributed.distributed_c10d"
LOCKS = "torch.utils.file_baton"
# From the begin of a wait for a lock of torch's compiler to the line about it.
LOCK_S = 60.0
# Steps; below it the ranks themselves are as short.
_SHORTEST_STRIDE = 3

# The address to which the first worker of a node sends what it imports before its first step.
MODULES_VARIABLE = "ELASTIC_FIRST_STEP_MODULES"

_CALLS = "elastic._worker"
_COLLECTIVES = "elastic._collectives"
_loaded: dict[str, Any] = {}

_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def prepare() -> None:
    """Loads in a process that forks workers what begin() needs in each of them."""
    if os.environ.get("ELASTIC_AUTO_PROGRESS", "") == "0":
        return
    import faulthandler  # noqa: F401

    for extension in (_CALLS, _COLLECTIVES) if DISTRIBUTED in sys.modules else (_CALLS,):
        try:
            _loaded[extension] = _load(extension)
        except Exception:  # the worker tries it again
            continue


def begin() -> None:
    """Has no effect in a process that does not have the worker's channel."""
    try:
        _begin()
    except Exception:  # the worker runs without reports
        return


def _begin() -> None:
    asked = os.environ.get("ELASTIC_AUTO_PROGRESS", "")
    if asked == "0" or "ELASTIC_CHANNEL" not in os.environ:
        return
    address = os.environ.pop(MODULES_VARIABLE, "")
    calls = _load(_CALLS)
    if calls is None or not calls.open():
        return
    _offer_stacks(calls)
    tell = _note_imports(address) if address and os.environ.get("LOCAL_RANK") == "0" else None
    after_import(OPTIMIZER, lambda module: _count_steps(module, calls.count, asked == "1", tell))
    after_import(DISTRIBUTED, lambda module: _follow_groups(module, calls))
    after_import(LOCKS, _tell_of_locks)
    calls.watch_errors()  # last: a hook of a module that --warm has preloaded may refuse it


def _load(extension: str) -> Any:
    """The one of the elastic that this interpreter imports; None: it cannot load any."""
    loaded = sys.modules.get(extension) or _loaded.get(extension)
    if loaded is not None:
        return loaded
    package = _find("elastic", None)
    spec = package and _find(extension, package.submodule_search_locations)
    spec = spec or _find(extension, [_PACKAGE_FOLDER])
    if spec is None or spec.loader is None:
        return None
    try:
        calls = spec.loader.create_module(spec)
        assert calls is not None
        spec.loader.exec_module(calls)
    finally:
        sys.modules.pop(extension, None)
    return calls


def _find(name: str, path: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if not isinstance(finder, (_Watcher, _Noted)):
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None


def _offer_stacks(calls: Any) -> None:
    number = calls.free_signal()
    if number:
        import faulthandler

        faulthandler.register(number, file=calls.stacks_descriptor(), all_threads=True)
        calls.offer_stacks(number)


def after_import(name: str, call: Callable[[Any], None]) -> None:
    """Calls ``call`` with the module once it was imported, which may have happened already."""
    module = sys.modules.get(name)
    if module is not None:
        call(module)
    else:
        sys.meta_path.insert(0, _Watcher(name, call))


class _Watcher:
    """A finder that lets the other ones find the module, and calls back once it was executed."""

    def __init__(self, name: str, call: Callable[[Any], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = _find(name, path)
        loader: Any = spec and spec.loader
        own = getattr(loader, "__dict__", None)
        if own is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module
        replaced = own.get("exec_module")

        def execute_and_call(module: ModuleType) -> None:
            if replaced is None:
                del own["exec_module"]  # the method of its class again
            else:
                own["exec_module"] = replaced
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                self._call(module)
            except Exception:  # another version of it: the worker runs without these reports
                return

        own["exec_module"] = execute_and_call
        return spec


def _note_imports(address: str) -> Callable[[], None]:
    """Notes the names of imported modules; the result sends those that were imported."""
    noted = _Noted()
    sys.meta_path.insert(0, noted)

    def send() -> None:
        if noted in sys.meta_path:
            sys.meta_path.remove(noted)
        names = [name for name in dict.fromkeys(noted.names) if name in sys.modules]
        try:
            from _socket import AF_UNIX, MSG_DONTWAIT, SOCK_CLOEXEC, SOCK_DGRAM, socket

            sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC)
            text = "\n".join(names).encode(errors="replace")
            sender.sendto(text, MSG_DONTWAIT, b"\0" + os.fsencode(address))
            sender.close()
        except OSError:  # there is no template, or it has the names
            return

    return send


class _Noted:
    """A finder that finds nothing."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        self.names.append(name)


def _count_steps(
    optimizer: Any,
    report: Callable[[int], None],
    is_asked: bool,
    tell: Callable[[], None] | None = None,
) -> None:
    """Counts the steps of torch's optimizers. Several that step in turn count as one.

    A script that imports ``elastic.worker`` reports its steps itself. With ``--auto-progress``
    they are counted until it does.
    """
    torch = sys.modules["torch"]
    stepped: set[int] = set()  # the optimizers that have made the current step
    steps = 0
    first = 0  # the first count that is reported; 0: not known yet

    def after_step(instance: object, *_: object) -> None:
        nonlocal steps, first
        if torch.compiler.is_compiling():
            return  # a call of the extension would end the compiled graph
        key = id(instance)
        if stepped and key not in stepped:
            stepped.add(key)
            return
        stepped.clear()
        stepped.add(key)
        steps += 1
        if first == 0:
            is_instrumented = "elastic.worker" in sys.modules
            if tell is not None:
                tell()
            first = 1 if not is_instrumented else 2 if is_asked else sys.maxsize
        if steps >= first:
            report(steps)

    optimizer.register_optimizer_step_post_hook(after_step)


def _follow_groups(c10d: Any, calls: Any) -> None:
    """Publishes the members of each process group that the script forms.

    torch keeps them in a dictionary of the module. With the first group, the worker's thread
    begins to watch the collective operations (``csrc/worker/flight_recorder.cc``).
    """
    collectives = _load(_COLLECTIVES)
    if collectives is None:
        return
    lines: list[str] = []

    class Groups(dict):  # type: ignore[type-arg]
        def __setitem__(self, group: Any, ranks: Any) -> None:
            dict.__setitem__(self, group, ranks)
            try:
                lines.append(f"{c10d._world.pg_names[group]}\t{_ranges(sorted(ranks))}\n")
                collectives.watch(calls.page(), "".join(lines))
            except Exception:  # another version of torch: nothing is known of this group
                return

        def clear(self) -> None:
            dict.clear(self)
            lines.clear()

    c10d._pg_group_ranks = Groups(c10d._pg_group_ranks)


def _tell_of_locks(file_baton: Any) -> None:
    """A worker says for which lock of torch's compiler it waits: that of a killed build stays.

    torch waits without a limit and without a word.
    """
    baton = file_baton.FileBaton
    wait = baton.wait

    def wait_and_tell(self: Any) -> Any:
        import threading

        timer = threading.Timer(LOCK_S, _tell_of_lock, (self.lock_file_path,))
        timer.daemon = True
        timer.start()
        try:
            return wait(self)
        finally:
            timer.cancel()

    baton.wait = wait_and_tell


def _tell_of_lock(path: str) -> None:
    import time

    try:
        age = f"was made {time.time() - os.stat(path).st_mtime:.0f} s ago"
    except OSError:
        age = "cannot be read"
    rank = os.environ.get("RANK", "?")
    sys.stderr.write(
        f"elastic: rank {rank} has waited {LOCK_S:g} s for a build of a torch extension, whose "
        f"lock {path} {age}: if no process builds, a build that was killed has left it; remove it\n"
    )
    sys.stderr.flush()


def _ranges(ranks: list[int]) -> str:
    """``0-3,8,16-64/16``: the last one is every sixteenth (``core/hang/collective_text.h``)."""
    parts = []
    first = 0
    while first < len(ranks):
        last = min(first + 1, len(ranks) - 1)
        step = ranks[last] - ranks[first]
        while last + 1 < len(ranks) and ranks[last + 1] - ranks[last] == step:
            last += 1
        if step > 1 and last - first < _SHORTEST_STRIDE:
            last = first
        end = f"-{ranks[last]}" if last > first else ""
        parts.append(f"{ranks[first]}{end}" + (f"/{step}" if end and step > 1 else ""))
        first = last + 1
    return ",".join(parts)
