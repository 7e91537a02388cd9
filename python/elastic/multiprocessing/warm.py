"""The command of the process that forks workers (docs/warm-workers.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from elastic.errors import ConfigError
from elastic.multiprocessing.site_hook import is_python

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PROGRAM = os.path.join(_PACKAGE, "_warm", "template.py")


def template(interpreter: Sequence[str], modules: str, program: Sequence[str]) -> tuple[str, ...]:
    """``interpreter``: the workers' command up to their script or ``-m``. ``modules``: a list with
    commas; "": the default. ``program``: the script, or ``-m`` and a module, with arguments.
    """
    return (*interpreter, _PROGRAM, modules, *program)


def check_modules(modules: str, origin: str) -> None:
    for name in modules.split(",") if modules else ():
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"{origin}: {name!r} is not the name of a module")


def of_entrypoint(
    entrypoint: Callable[..., Any] | str | None, args: Sequence[Any], modules: str
) -> tuple[str, ...]:
    """The template for what ``elastic_launch`` runs; (): it is no Python program."""
    if callable(entrypoint):
        from elastic.multiprocessing.calls import interpreter

        return template(interpreter(), modules, _main_program())
    words = (str(entrypoint), *map(str, args))
    begin = 2 if words[1:2] == ("-u",) else 1
    is_script = words[begin:] and (words[begin] == "-m" or not words[begin].startswith("-"))
    if not is_script or not is_python(words[0]):
        return ()
    return template(words[:begin], modules, words[begin:])


def _main_program() -> tuple[str, ...]:
    """This process's script: workers that call a function import it again."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return ("-m", spec.name)
    path = getattr(main, "__file__", None)
    if path is not None and os.path.isfile(path):
        return (os.path.abspath(path),)
    return ("-m", "__main__")  # it has no file: the first entry of the search path is the directory
