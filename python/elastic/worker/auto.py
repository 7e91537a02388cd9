"""Runs a script or a module that reports no progress itself (``--auto-progress``).

    python -m elastic.worker.auto SCRIPT [ARGUMENT ...]
    python -m elastic.worker.auto -m MODULE [ARGUMENT ...]

The script is ``__main__``, as without this module. When it imports torch's optimizers, each of
their steps is counted and reported, until the script reports progress itself.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

from elastic import worker

HOOKED = "torch.optim.optimizer"


class _OptimizerFinder(importlib.abc.MetaPathFinder):
    """Finds the optimizer module as usual, and counts steps once it was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != HOOKED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def execute(module: types.ModuleType) -> None:
                load(module)
                _count_steps(module)

            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def _count_steps(optimizer: Any) -> None:
    """Several optimizers that step together count as one: the most frequent one."""
    counts: dict[int, int] = {}
    newest = 0

    def stepped(instance: object, *_: object) -> None:
        nonlocal newest
        count = counts[id(instance)] = counts.get(id(instance), 0) + 1
        if count > newest:
            newest = count
            worker.progress(count)

    optimizer.register_optimizer_step_post_hook(stepped)


def main(arguments: list[str]) -> None:
    if HOOKED in sys.modules:
        _count_steps(sys.modules[HOOKED])
    else:
        sys.meta_path.insert(0, _OptimizerFinder())
    if arguments[0] == "-m":
        import runpy

        sys.argv = arguments[1:]
        runpy._run_module_as_main(arguments[1], alter_argv=True)  # type: ignore[attr-defined]
    else:
        _run_script(arguments)


def _run_script(arguments: list[str]) -> None:
    path = arguments[0]
    sys.argv = arguments
    if os.path.isdir(path):
        import runpy

        runpy.run_path(path, run_name="__main__")
        return
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)


if __name__ == "__main__":
    main(sys.argv[1:])
