"""Runs a program that uses torch's launcher, with elastic in its place.

``python -m elastic.torchrun NAME [ARGUMENT ...]`` is ``python -m NAME [ARGUMENT ...]``, or the
installed command NAME, in a process where elastic's modules replace those of torch's launcher::

    python -m elastic.torchrun accelerate launch --multi_gpu --num_processes 8 train.py

A program can call ``install()`` instead, before it imports these modules. The workers of the job
are other processes, in which torch has its own modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from elastic import _aliases

__all__ = ["MODULES", "install", "main"]

# The modules of torch's launcher, and those in their place.
MODULES: dict[str, str | dict[str, str]] = {
    "torch.distributed.run": "elastic.run",
    "torch.distributed.launch": "elastic.launch",
    "torch.distributed.launcher": "elastic.launcher",
    "torch.distributed.launcher.api": "elastic.launcher.api",
}

EXIT_USAGE = 2
USAGE = "usage: python -m elastic.torchrun NAME [ARGUMENT ...]"


def install() -> None:
    """Lets ``import torch.distributed.run`` and its neighbours find elastic's modules from now on.

    A name that a module has imported from torch's before remains torch's.
    """
    if not _aliases.install(MODULES):
        return
    for theirs in MODULES:
        if sys.modules.pop(theirs, None) is not None:
            importlib.import_module(theirs)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs NAME with its arguments, as the interpreter would."""
    import runpy

    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["-h"], ["--help"]):
        print(f"{USAGE}\n\n{__doc__}")
        return
    if not words or words[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        sys.exit(EXIT_USAGE)
    name = words[0]
    sys.argv = words
    install()
    command = _command(name)
    if command is not None:
        sys.exit(command())
    module = str(MODULES.get(name, name))  # torch itself is not needed for its launcher
    if not _exists(module):
        print(f"elastic.torchrun: no module or installed command {name!r}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _command(name: str) -> Any:
    """The function of an installed command; None: there is none of this name."""
    from elastic._plug_in import registered

    found = registered("console_scripts", name)
    return found and found.load()


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return False
        raise


if __name__ == "__main__":
    main()
