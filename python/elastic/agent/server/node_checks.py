"""The commands of ``--node-check`` as programs. docs/policy.md has what they mean."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from typing import Any

from elastic.errors import ConfigError

BUILT_IN = ("gpu",)  # modules of elastic.checks
SOCKET = "unix://"  # of NVIDIA's health check daemon
NETWORK = "network"  # of the agents of all nodes, which measure in pairs
NAME_BYTES_MAX = 255


def settings_of(commands: Iterable[str]) -> dict[str, Any]:
    """The options of the native agent. Raises ConfigError for a command that is none."""
    checks = [(command, _words(command)) for command in commands]
    if any(words[0] == NETWORK and len(words) > 1 for _, words in checks):
        raise ConfigError(f"the check {NETWORK} has no options")
    programs = [_program(*one) for one in checks if one[1][0] != NETWORK]
    return {"node_checks": programs, "network_check": len(programs) < len(checks)}


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the check {command!r} cannot be split into words: {error}") from None
    if not words:
        raise ConfigError("a check has no command")
    return words


def _program(command: str, words: list[str]) -> tuple[str, list[str]]:
    name = command.strip().encode()[:NAME_BYTES_MAX].decode(errors="ignore")
    if words[0] in BUILT_IN:
        words[:1] = [sys.executable, "-m", f"elastic.checks.{words[0]}"]
    elif words[0].startswith(SOCKET):
        words[:0] = [sys.executable, "-m", "elastic.checks.nvhcd"]
    return name, words
