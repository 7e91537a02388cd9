"""The modules that a script imports at its top level."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator

_STANDARD = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(name)), "")
    for name in ("stdlib", "platstdlib")
)
# Folders of installed packages: of the interpreter, the user, the distribution, or another
# environment whose packages are visible in this one.
_PACKAGES = ("/site-packages/", "/dist-packages/")


def imports(program: list[str]) -> list[str]:
    """The installed modules among them, in the order of the script. Local ones are not included:
    they change often, and may do anything when they are imported.
    """
    path = _file(program)
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    return [name for name in dict.fromkeys(_names(tree)) if is_installed(name)]


def _file(program: list[str]) -> str:
    if program[0] != "-m":
        return program[0]
    path = os.path.join(sys.path[0], *program[1].split("."))
    return os.path.join(path, "__main__.py") if os.path.isdir(path) else f"{path}.py"


def _names(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            yield statement.module


def is_installed(name: str) -> bool:
    top = name.partition(".")[0]
    if top == "elastic" or top in sys.builtin_module_names:
        return False
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if not spec or not spec.origin:
        return False
    path = os.path.realpath(spec.origin)
    return path.startswith(_STANDARD) or any(folder in path for folder in _PACKAGES)
