"""Public names that are loaded on first use, so that importing a package is cheap."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any


def attach(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package. ``homes``: modules, and the names of each.
    ``NAME=OTHER`` is the name OTHER of the module.

    ``modules`` are submodules that are loaded on first use as well. ``dir()`` omits them: one may
    need a package that is not installed.
    """
    by_name = {}
    for home, names in homes.items():
        for entry in names.split():
            name, _, other = entry.partition("=")
            by_name[name] = (home, other or name)

    def load(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        home = by_name.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home[0]), home[1])
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *by_name})

    return load, listed
