"""The names of the interpreter and its library that are not public, and that elastic uses.

A new version of Python may rename or remove them. If a test fails here, its message names what is
gone and which part of elastic needs another way.
"""

from __future__ import annotations

import ast
import importlib
import multiprocessing.managers
import sys
import threading
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

SOURCES = ROOT / "python" / "elastic"

# The name, an object that has it, and what does not work without it.
USED: dict[str, tuple[Any, str]] = {
    "_set_native_id": (threading.Thread, "warm workers: the thread id of the main thread"),
    "_handlerList": ("logging", "warm workers: log handlers that were open before the fork"),
    "_run_module_as_main": ("runpy", "warm workers: python -m"),
    "_extra_reducers": (ForkingPickler, "arguments of functions: pickling as multiprocessing"),
    "set_spawning_popen": ("multiprocessing.context", "arguments of functions: queues and locks"),
    "_inheriting": (None, "results of functions: queues and locks; set by elastic itself"),
    "_run_exitfuncs": ("atexit", "the exit handlers of plug-ins at the end of the launcher"),
}

# With an underscore, but public, or a name of an annotation alone.
DOCUMENTED = {"_exit", "_getframe", "_HANDLER", "_ActionsContainer"}


@pytest.mark.parametrize("name", [name for name, (home, _) in USED.items() if home is not None])
def test_this_interpreter_has_the_name(name: str) -> None:
    home, use = USED[name]
    owner = importlib.import_module(home) if isinstance(home, str) else home
    assert hasattr(owner, name), (
        f"Python {sys.version.split()[0]} no longer has {owner.__name__}.{name}. It is for {use}"
    )


def test_a_process_reads_whether_it_inherits() -> None:
    """``_inheriting`` is an attribute that the library looks for: it must still do so."""
    source = Path(str(multiprocessing.managers.__file__)).read_text()
    assert "_inheriting" in source, USED["_inheriting"][1]


def private_names(path: Path) -> Iterator[str]:
    """Attributes with an underscore of modules of the standard library."""
    tree = ast.parse(path.read_text())
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] in sys.stdlib_module_names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        base = node.value
        while isinstance(base, ast.Attribute | ast.Call):
            base = base.value if isinstance(base, ast.Attribute) else base.func
        if isinstance(base, ast.Name) and base.id in modules and not node.attr.startswith("__"):
            yield node.attr


def test_the_list_has_all_private_names_that_elastic_uses() -> None:
    found = {name for path in SOURCES.rglob("*.py") for name in private_names(path)}
    assert found - DOCUMENTED <= USED.keys()
    text = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    assert [name for name in USED if name not in text] == [], "no longer used"
