"""The options as an ``argparse`` parser, for programs that change the namespace before the launch.

Names, types and defaults of the attributes are torch's; options that torch does not have are None
until they are given.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from elastic.cli.command_line import CommandLine, Value, refuse_unavailable
from elastic.cli.options import GROUPS, OPTIONS, PROGRAM, Option
from elastic.constants import START_METHODS
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
               "signals-to-handle")  # fmt: skip
_CHOICES = {
    "start-method": START_METHODS,
    "numa-binding": ("node", "socket", "exclusive", "core-complex"),
}


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


def _default(option: Option) -> Any:
    if option.is_switch:
        return False
    if option.name in _TORCH_TEXT:
        return option.default
    return _DEFAULTS.get(option.name)


def _attribute(option: Option) -> str:
    return option.name.replace("-", "_")


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """A new parser; ``PET_*`` variables replace defaults."""
    made = argparse.ArgumentParser(PROGRAM, description="Starts distributed PyTorch jobs.")
    titles = {option.name: title for title, options in GROUPS for option in options}
    groups = {title: made.add_argument_group(title) for title, _ in GROUPS}
    for option in OPTIONS:
        flags = [f"--{option.name}"]
        if "-" in option.name:
            flags.append(f"--{_attribute(option)}")
        if option.short:
            flags.insert(0, f"-{option.short}")
        target = groups.get(titles.get(option.name, ""), made)
        default, given = _default(option), environ.get(option.variable)
        help_text = option.help.replace("%", "%%")
        if option.is_switch:
            is_on = default if given is None else given == "1"
            target.add_argument(*flags, action="store_true", default=is_on, help=help_text)
            continue
        target.add_argument(
            *flags,
            metavar=option.metavar,
            type=_TYPES.get(option.name, str),
            choices=_CHOICES.get(option.name),
            default=default if given is None else given,
            help=help_text,
        )
    made.add_argument("training_script", type=str, help="The program, a script as a rule.")
    made.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return made


def command_line(args: argparse.Namespace) -> CommandLine:
    """The namespace as a command line on which every attribute that is not a default was given."""
    values = {}
    for option in OPTIONS:
        given = getattr(args, _attribute(option), None)
        if given is None or given == _default(option):
            continue
        text = ("1" if given else "0") if option.is_switch else str(given)
        if isinstance(given, list | tuple):
            text = ",".join(str(part).replace(",", ",,") for part in given)
        values[option.name] = Value(text, f"--{option.name}")
    refuse_unavailable(values)
    arguments = getattr(args, "training_script_args", None) or ()
    return CommandLine(values, args.training_script, tuple(map(str, arguments)), [])
