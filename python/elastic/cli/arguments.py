"""The options as an ``argparse`` parser, for programs and for the completion of shells.

Names, types and defaults of the attributes are torch's; options that torch does not have are None
until they are given.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from elastic.cli.options import GROUPS, OPTIONS, PROGRAM, Option, shells
from elastic.constants import START_METHODS
from elastic.errors import ConfigError
from elastic.multiprocessing.logs import parse_words

# Defaults of torch's options that the table of options omits or writes in another form.
_DEFAULTS: dict[str, Any] = {
    "nnodes": "1:1",
    "rdzv-id": "none",
    "rdzv-endpoint": "",
    "rdzv-conf": "",
    "local-ranks-filter": "",
    "max-restarts": 0,
    "monitor-interval": 0.1,
    "node-rank": 0,
    "duplicate-stdout-filters": [],
    "duplicate-stderr-filters": [],
    "event-log-handler": "null",
    "master-addr": "127.0.0.1",
}
_TORCH_TEXT = ("nproc-per-node", "role", "start-method", "rdzv-backend", "redirects", "tee",
               "signals-to-handle", "log-line-prefix-template")  # fmt: skip
_CHOICES = {
    "start-method": START_METHODS,
    "numa-binding": ("node", "socket", "exclusive", "core-complex"),
}


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


def _text_list(text: str) -> list[str]:
    return list(parse_words(text))


_TYPES: dict[str, Any] = {
    "max-restarts": int,
    "node-rank": int,
    "master-port": int,
    "shutdown-timeout": float,
    "monitor-interval": float,
    "duplicate-stdout-filters": _text_list,
    "duplicate-stderr-filters": _text_list,
}


def default(option: Option) -> Any:
    if option.is_switch:
        return False
    if option.name in _TORCH_TEXT:
        return option.default
    return _DEFAULTS.get(option.name)


def attribute(option: Option) -> str:
    return option.name.replace("-", "_")


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
    titles = {option.name: title for title, options in GROUPS for option in options}
    groups = {title: made.add_argument_group(title) for title, _ in GROUPS}
    for option in OPTIONS:
        flags = [f"--{option.name}"]
        if "-" in option.name:
            flags.append(f"--{attribute(option)}")
        if option.short:
            flags.insert(0, f"-{option.short}")
        target = groups.get(titles.get(option.name, ""), made)
        normal, given = default(option), environ.get(option.variable)
        help_text = option.help.replace("%", "%%")
        if option.is_switch:
            if given not in (None, "0", "1"):
                raise ConfigError(f"{option.variable} is {given!r}: expected 0 or 1")
            is_on = normal if given is None else given == "1"
            target.add_argument(*flags, action="store_true", default=is_on, help=help_text)
            continue
        target.add_argument(
            *flags,
            metavar=option.metavar,
            type=_TYPES.get(option.name, str),
            choices=_CHOICES.get(option.name),
            default=normal if given is None else given,
            help=help_text,
        )
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
