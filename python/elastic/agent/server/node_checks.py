"""The commands of ``--node-check`` as programs. docs/node-checks.md has what they mean."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable

from elastic.errors import ConfigError

BUILT_IN = ("gpu",)  # modules of elastic.checks
NAME_BYTES_MAX = 255


def programs(commands: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The name and the arguments of each command. Raises ConfigError for one that is none."""
    return [_program(command) for command in commands]


def _program(command: str) -> tuple[str, list[str]]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the check {command!r} cannot be split into words: {error}") from None
    if not words:
        raise ConfigError("a check has no command")
    name = command.strip().encode()[:NAME_BYTES_MAX].decode(errors="ignore")
    if words[0] in BUILT_IN:
        words[:1] = [sys.executable, "-m", f"elastic.checks.{words[0]}"]
    return name, words
