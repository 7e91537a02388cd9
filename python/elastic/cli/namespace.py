"""A namespace of the ``argparse`` parser as a command line, also after a program changed it."""

from __future__ import annotations

import argparse

from elastic.cli.command_line import CommandLine, Value, pass_local_rank
from elastic.cli.options import OPTIONS


def command_line(args: argparse.Namespace) -> CommandLine:
    """The namespace as a command line on which every attribute that is not a default was given."""
    values = {}
    for option in OPTIONS:
        given = getattr(args, option.attribute, None)
        if given is None or given == option.attribute_default:
            continue
        text = ("1" if given else "0") if option.is_switch else str(given)
        if isinstance(given, list | tuple):
            text = ",".join(str(part).replace(",", ",,") for part in given)
        values[option.name] = Value(text, f"--{option.name}")
    arguments = getattr(args, "training_script_args", None) or ()
    line = CommandLine(values, args.training_script, tuple(map(str, arguments)), [])
    return line if getattr(args, "use_env", True) else pass_local_rank(line)
