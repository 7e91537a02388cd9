"""Checked values of a command line. A ``ConfigError`` names the option or its variable."""

from __future__ import annotations

from elastic.cli.command_line import CommandLine
from elastic.constants import TEXT_BYTES_MAX
from elastic.errors import ConfigError
from elastic.text import is_number


def integer(line: CommandLine, name: str, least: int, most: int) -> int:
    text = line.text(name).strip()
    if not is_number(text) or not least <= int(text) <= most:
        bounds = f"from {least}" if most == 2**31 - 1 else f"from {least} to {most}"
        raise ConfigError(f"{line.origin(name)} is {text!r}: expected a whole number {bounds}")
    return int(text)


def size(line: CommandLine, name: str, least: int) -> int:
    """A number of bytes: ``4096``, ``64K``, ``500M``, ``2G``."""
    text = line.text(name).strip()
    factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    number = text[:-1] if factor > 1 else text
    if not is_number(number) or not least <= int(number) * factor < 2**63:
        raise ConfigError(
            f"{line.origin(name)} is {text!r}: expected a number of bytes from {least}, as in 500M"
        )
    return int(number) * factor


def short(line: CommandLine, name: str) -> str:
    text = line.text(name)
    if len(text.encode(errors="surrogateescape")) > TEXT_BYTES_MAX:
        raise ConfigError(f"{line.origin(name)} is longer than {TEXT_BYTES_MAX} bytes")
    return text
