"""Writes type stubs for the module names of elastic/_aliases.py, which have no file.

    python tools/write_alias_stubs.py FOLDER   # the folder of the package `elastic`

The build of a package calls it: type checkers see files only.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "python"


def aliases() -> dict[str, str | dict[str, str]]:
    """The table, without the package: its extension may be built for another machine."""
    spec = importlib.util.spec_from_file_location("_aliases", SOURCES / "elastic" / "_aliases.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, str | dict[str, str]] = module.ALIASES
    return found


def modules_below(name: str, table: Iterable[str]) -> Iterator[str]:
    """``name`` and the modules below it that have a file or an alias."""
    yield name
    yield from (alias for alias in table if alias.startswith(f"{name}."))
    folder = SOURCES / name.replace(".", "/")
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).with_suffix("").as_posix().removesuffix("__init__")
        if inner:
            yield f"{name}.{inner.rstrip('/').replace('/', '.')}"


def stub_of_names(homes: dict[str, str]) -> str:
    pairs = [
        (module, *entry.partition("=")[::2])
        for module, names in homes.items()
        for entry in names.split()
    ]
    lines = [f"from {module} import {other or name} as {name}" for module, name, other in pairs]
    return "\n".join([*lines, f"__all__ = {[name for _, name, _ in pairs]}", ""])


def stubs() -> Iterator[tuple[str, str]]:
    """The path of each stub below the folder of all packages, and its text."""
    table = aliases()
    for alias, home in table.items():
        if isinstance(home, dict):
            yield f"{alias.replace('.', '/')}.pyi", stub_of_names(home)
            continue
        is_below_itself = alias.startswith(f"{home}.")
        for module in [home] if is_below_itself else modules_below(home, table):
            path = (alias + module.removeprefix(home)).replace(".", "/")
            is_package = not is_below_itself and (SOURCES / module.replace(".", "/")).is_dir()
            yield f"{path}{'/__init__' if is_package else ''}.pyi", f"from {module} import *\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for path, text in stubs():
        target = folder.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
