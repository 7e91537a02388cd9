"""``elastic-launch install-shim``: a file ``torchrun`` for programs that execute this command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from elastic import _files
from elastic.cli import subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import ConfigError

NAME = "torchrun"
MARK = "# Written by elastic-launch install-shim."
# The interpreter is named in the body: the kernel limits the length of a first line.
SHIM = f"""\
#!/bin/sh
{MARK}
''':'
exec %s "$0" "$@"
'''
from elastic.run import console_main

console_main()
"""


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} install-shim",
        description=f"Writes a file {NAME} into DIRECTORY, which runs {PROGRAM} with this "
        f"interpreter. With DIRECTORY first in PATH, programs that execute {NAME} run {PROGRAM}. "
        f"A {NAME} of another package is not replaced.",
    )
    made.add_argument("directory", metavar="DIRECTORY", help="created if it does not exist")
    return made


def run(arguments: Sequence[str]) -> int:
    directory = os.path.abspath(parser().parse_args(arguments).directory)
    path = os.path.join(directory, NAME)
    try:
        os.makedirs(directory, exist_ok=True)
        if os.path.lexists(path) and not _is_ours(path):
            raise ConfigError(
                f"{path} already exists and belongs to another program: choose another directory"
            )
        _files.replace(path, os.fsencode(SHIM % shlex.quote(sys.executable)))
        os.chmod(path, 0o755)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    print(f'{path} runs {PROGRAM}; use it by: export PATH={shlex.quote(directory)}:"$PATH"')
    return 0


def _is_ours(path: str) -> bool:
    """Whether an earlier call wrote the file. A link may be to the torchrun of a package."""
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, errors="replace") as file:
        return MARK in file.read(1024)
