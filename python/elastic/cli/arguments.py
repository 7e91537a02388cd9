"""The options as an ``argparse`` parser, for programs and for the completion of shells.

Names, types and defaults of the attributes are torch's; options that torch does not have are None
until they are given.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from elastic.cli.grammar import scan
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


class _AddLine(argparse.Action):
    """Of an option that may be given several times: its attribute has one line for each."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, self.dest)
        is_first = given is self.default
        setattr(namespace, self.dest, str(values) if is_first else f"{given}\n{values}")


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script that completes the options in this shell, after the name that this program has."""
    try:
        import shtab
    except ImportError:
        raise ConfigError(
            "--print-completion needs the package shtab: pip install elastic-launch[completion]"
        ) from None
    name = os.path.basename(sys.argv[0])  # torchrun, by the shim
    is_module = name.endswith(".py") or name.startswith("-")
    if parser.prog == PROGRAM and not is_module:
        parser.prog = name
    return str(shtab.complete(parser, shell))


class _Parser(argparse.ArgumentParser):
    """Finds PROGRAM by the launcher's grammar; argparse alone also parses what follows it.

    Programs add options of their own, so argparse converts the values and reports the errors.
    """

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """The matches of an abbreviation; the two spellings of an option are one match."""
        found = super()._get_option_tuples(option_string)
        return found[:1] if len({id(match[0]) for match in found}) == 1 else found

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = self._divided(sys.argv[1:] if args is None else args)
        return super().parse_known_args(words, namespace)

    def _divided(self, words: Sequence[str]) -> list[str]:
        """The words with ``--`` before PROGRAM, if all options before it are known."""
        by_flag = {flag: action for action in self._actions for flag in action.option_strings}
        if any(action.nargs not in (None, 0) for action in by_flag.values()):
            return list(words)
        known = {flag: Option(flag.lstrip("-").replace("_", "-"), "X" * (action.nargs is None), "")
                 for flag, action in by_flag.items()}  # fmt: skip
        by_name = {option.name: option for flag, option in known.items() if flag[:2] == "--"}
        by_short = {flag[1]: option for flag, option in known.items() if len(flag) == 2}
        found, position = scan(words, by_name, by_short)
        is_divided = position > 0 and words[position - 1] == "--"
        if is_divided or any(len(given.names) != 1 for given in found):
            return list(words)
        return [*words[:position], "--", *words[position:]]


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
    made.add_argument("training_script", type=str, help="The program, usually a script.")
    made.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return made


def add(group: argparse._ActionsContainer, option: Option, flags: list[str], default: Any) -> None:
    about = option.about.replace("%", "%%")
    if option.is_switch:
        group.add_argument(*flags, action="store_true", default=default, help=about)
        return
    group.add_argument(
        *flags,
        action=_AddLine if option.repeats else "store",
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
