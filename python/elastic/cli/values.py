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


def exit_codes(line: CommandLine, name: str) -> tuple[int, ...]:
    """Exit codes of workers, with ranges: ``3,64-78``."""
    found: set[int] = set()
    for part in line.text(name).split(",") if line.text(name) else ():
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (is_number(first) and is_number(last) and 1 <= int(first) <= int(last) <= 255):
            raise ConfigError(
                f"{line.origin(name)} is {line.text(name)!r}: expected exit codes from 1 to 255, "
                "as in 3,64-78"
            )
        found.update(range(int(first), int(last) + 1))
    return tuple(sorted(found))


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
