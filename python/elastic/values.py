"""Numbers out of the text of options and variables; a ``ConfigError`` names where it came from."""

from __future__ import annotations

import math

from elastic.errors import ConfigError
from elastic.options import CommandLine


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def integer(line: CommandLine, name: str, least: int, most: int) -> int:
    text = line.text(name).strip()
    if not is_number(text) or not least <= int(text) <= most:
        bounds = f"from {least}" if most == 2**31 - 1 else f"from {least} to {most}"
        raise ConfigError(f"{line.origin(name)} is {text!r}: expected a whole number {bounds}")
    return int(text)


def seconds(text: str, origin: str, *, positive: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        bound = "greater than 0" if positive else "from 0"
        raise ConfigError(f"{origin} is {text!r}: expected a number of seconds {bound}")
    return value
