"""The subcommands of ``elastic-launch``: ``elastic-launch NAME [ARGUMENT ...]``.

The first argument is a subcommand if it is one of the names below and the current directory has no
script of that name. In every other position, and as ``./NAME``, it is the program, as before there
were subcommands.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from elastic import _C
from elastic.cli.options import PROGRAM
from elastic.errors import ConfigError, RendezvousClosed, RendezvousError, RendezvousUnavailable
from elastic.text import seconds

EXIT_NO_SUCH_JOB = 1


class Subcommand(NamedTuple):
    name: str
    module: str  # has run(arguments) -> exit status; may raise ElasticError and SystemExit
    help: str


SUBCOMMANDS = (
    Subcommand("status", "elastic.cli.status", "Lists the jobs of this host, or shows one job."),
    Subcommand("stacks", "elastic.cli.stacks", "Prints where the workers of a running job are."),
    Subcommand("drain", "elastic.cli.drain", "Stops all ranks of a running job at one step."),
    Subcommand("exclude", "elastic.cli.exclude", "Excludes a host from a running job."),
    Subcommand("readmit", "elastic.cli.readmit", "Ends the exclusion of a host."),
    Subcommand("dashboard", "elastic.cli.dashboard", "Shows a running job as a web page."),
    Subcommand(
        "install-shim",
        "elastic.cli.install_shim",
        "Writes a torchrun that runs this program.",
    ),
    Subcommand("help", "elastic.cli.manual", "Prints a page of the manual."),
)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, as the launcher does."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} ({self.prog} --help)", file=sys.stderr)
        raise SystemExit(_C.EXIT_USAGE)


def add_job(parser: Parser, *, is_required: bool = False) -> None:
    """Adds the arguments by which a subcommand finds its job, and is allowed to read it.

    ``is_required``: it changes the job, so the only one of the host is not chosen unnamed.
    """
    unnamed = "" if is_required else "; without it: the only job of this host, or of the Slurm job"
    parser.add_argument(
        "endpoint",
        metavar="JOB",
        nargs="?",
        default="",
        help="the run id of a job of this host, or HOST[:PORT] of the job's coordinator, or a "
        "list as in --rdzv-endpoint, or BACKEND://ENDPOINT of the store that keeps its record "
        f"(with --rdzv-id){unnamed}",
    )
    parser.add_argument(
        "--rdzv-id",
        "--rdzv_id",
        metavar="ID",
        default="",
        help="the job, if the coordinator or this host has several",
    )
    add_token_file(parser, "the job or of its observers")


def add_token_file(parser: Parser, whose: str) -> None:
    parser.add_argument(
        "--token-file",
        "--token_file",
        metavar="FILE",
        default="",
        help=f"the file with the token of {whose} (elastic-launch help security)",
    )


def add_seconds(parser: Parser, flag: str, default: float, help: str) -> None:
    """Adds an option for a duration, with the checks of the launcher's options."""

    def checked(text: str) -> float:
        try:
            return seconds(text, flag, positive=True)
        except ConfigError as error:
            parser.error(str(error))

    text = f"{help} (default {default:g})"
    parser.add_argument(flag, metavar="SECONDS", type=checked, default=default, help=text)


def report(name: str, error: RendezvousError, hint: str = "") -> int:
    """Prints why the subcommand did not reach its job, and returns the exit status."""
    is_unreached = isinstance(error, (RendezvousClosed, RendezvousUnavailable))
    print(f"{PROGRAM} {name}: {error}{hint if is_unreached else ''}", file=sys.stderr)
    if isinstance(error, RendezvousClosed):
        return EXIT_NO_SUCH_JOB
    return _C.EXIT_JOIN_TIMED_OUT if is_unreached else _C.EXIT_REJECTED


def find(argv: Sequence[str]) -> Subcommand | None:
    """The subcommand that the arguments select, if they do not select a program."""
    if not argv:
        return None
    for subcommand in SUBCOMMANDS:
        if argv[0] == subcommand.name:
            return None if _is_script(subcommand.name) else subcommand
    return None


def _is_script(name: str) -> bool:
    """Whether the current directory has a program of a subcommand's name; reports it."""
    if not os.path.isfile(os.path.join(name, "__main__.py") if os.path.isdir(name) else name):
        return False
    print(
        f"{PROGRAM}: running the script ./{name}, not the subcommand {name}: for that, change to "
        "another directory",
        file=sys.stderr,
    )
    return True


def run(subcommand: Subcommand, arguments: Sequence[str]) -> int:
    """Runs it and returns the exit status."""
    module = importlib.import_module(subcommand.module)
    code: int = module.run(arguments)
    return code
