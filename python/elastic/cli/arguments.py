"""The options as an ``argparse`` parser, for programs and for the completion of shells.

Names, types and defaults of the attributes are torch's; options that torch does not have are None
until they are given.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from elastic.cli.options import GROUPS, PROGRAM, Option, shells
from elastic.errors import ConfigError


class _PrintCompletion(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(completion(parser, str(values)))
        parser.exit()


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script that completes the options in this shell."""
    try:
        import shtab
    except ImportError:
        raise ConfigError(
            "--print-completion needs the package shtab: pip install elastic-launch[completion]"
        ) from None
    return str(shtab.complete(parser, shell))


class _Parser(argparse.ArgumentParser):
    """Until Python 3.12 argparse rejects an ambiguous abbreviation among the script's arguments."""

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """The matches of an abbreviation; an ambiguous one matches no option."""
        found = super()._get_option_tuples(option_string)
        actions = {id(match[0]) for match in found}  # an option has two spellings
        return found[:1] if len(actions) == 1 else []


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """A new parser; ``PET_*`` variables replace defaults."""
    made = _Parser(PROGRAM, description="Starts distributed PyTorch jobs.")
    for title, options in GROUPS:
        group = made.add_argument_group(title)
        for option in options:
            flags = option.flags
            if "-" in option.name:
                flags.append(f"--{option.attribute}")
            add(group, option, flags, _start_value(option, environ))
    made.add_argument(
        "--print-completion",
        "--print_completion",
        action=_PrintCompletion,
        choices=shells(),
        help="Print a script that completes the options in this shell, and exit.",
    )
    made.add_argument("training_script", type=str, help="The program, a script as a rule.")
    made.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return made


def add(group: argparse._ActionsContainer, option: Option, flags: list[str], default: Any) -> None:
    about = option.about.replace("%", "%%")
    if option.is_switch:
        group.add_argument(*flags, action="store_true", default=default, help=about)
        return
    group.add_argument(
        *flags,
        metavar=option.metavar,
        type=option.type,
        choices=option.choices or None,
        default=default,
        help=about,
    )


def _start_value(option: Option, environ: Mapping[str, str]) -> Any:
    """The variable's value, else the option's default."""
    given = environ.get(option.variable)
    if option.is_switch and given is not None:
        if given not in ("0", "1"):
            raise ConfigError(f"{option.variable} is {given!r}: expected 0 or 1")
        return given == "1"
    return option.attribute_default if given is None else given
