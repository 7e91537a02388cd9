"""Checked values of a command line. A ``ConfigError`` names the option or its variable."""

from __future__ import annotations

from typing import Protocol

from elastic.constants import TEXT_BYTES_MAX
from elastic.errors import ConfigError
from elastic.text import is_number, parse_exit_codes, seconds

BUDDIES_MAX = 16  # nodes with copies of one node's snapshots


class Line(Protocol):
    """What the readers need of a command line."""

    def text(self, name: str) -> str: ...

    def origin(self, name: str) -> str: ...

    def has_value(self, name: str) -> bool: ...

    def choices(self, name: str) -> tuple[str, ...]: ...

    def switch(self, name: str) -> bool: ...


def integer(line: Line, name: str, least: int, most: int) -> int:
    text = line.text(name).strip()
    if not is_number(text) or not least <= int(text) <= most:
        # Only a number that is too large needs to know a limit that no job reaches.
        is_open = most == 2**31 - 1 and not (text.isascii() and text.isdigit())
        bounds = f"from {least}" if is_open else f"from {least} to {most}"
        raise ConfigError(f"{line.origin(name)} is {text!r}: expected a whole number {bounds}")
    return int(text)


def given_count(line: Line, name: str) -> int | None:
    """From 0; None: the option was not given."""
    return integer(line, name, 0, 2**31 - 1) if line.text(name) else None


def exit_codes(line: Line, name: str) -> tuple[int, ...]:
    """Exit codes of workers, with ranges: ``3,64-78``."""
    given = line.text(name)
    return tuple(sorted(parse_exit_codes(given, f"{line.origin(name)} is {given!r}")))


def lines(line: Line, name: str) -> tuple[str, ...]:
    """The values of an option that may be given several times."""
    return tuple(filter(None, map(str.strip, line.text(name).splitlines())))


def duration(line: Line, name: str) -> float | None:
    """Seconds; None: the option was not given and has no default."""
    return seconds(line.text(name), line.origin(name)) if line.has_value(name) else None


def positive_duration(line: Line, name: str) -> float | None:
    if not line.has_value(name):
        return None
    return seconds(line.text(name), line.origin(name), positive=True)


def choice(line: Line, name: str) -> str:
    text, known = line.text(name), line.choices(name)
    if text not in known:
        what = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ConfigError(f"{line.origin(name)} is {text!r}: expected {what}")
    return text


def text(line: Line, name: str) -> str:
    return line.text(name)


def switch(line: Line, name: str) -> bool:
    return line.switch(name)


def size(line: Line, name: str, least: int) -> int:
    """A number of bytes: ``4096``, ``64K``, ``500M``, ``2G``."""
    text = line.text(name).strip()
    factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    number = text[:-1] if factor > 1 else text
    if not is_number(number) or not least <= int(number) * factor < 2**63:
        raise ConfigError(
            f"{line.origin(name)} is {text!r}: expected a number of bytes from {least}, as in 500M"
        )
    return int(number) * factor


def given_size(line: Line, name: str) -> int | None:
    """As size(); None: the option was not given."""
    return size(line, name, 0) if line.has_value(name) else None


def buddies(line: Line, name: str) -> int | None:
    if is_number(line.text(name).strip()):
        return integer(line, name, 1, BUDDIES_MAX)
    return 0 if choice(line, name) == "off" else None


def short(line: Line, name: str) -> str:
    """A name or text of this node that other processes get, and show."""
    text = line.text(name)
    if not all(map(_is_shown, text)):
        raise ConfigError(
            f"{line.origin(name)} is {text!r}: expected printable UTF-8, without control characters"
        )
    if len(text.encode(errors="surrogateescape")) > TEXT_BYTES_MAX:
        raise ConfigError(f"{line.origin(name)} is longer than {TEXT_BYTES_MAX} bytes")
    return text


def _is_shown(letter: str) -> bool:
    """Whether sessions take it (core/base/text.h). Bytes that are no UTF-8 are surrogates here."""
    is_control = letter < " " or "\x7f" <= letter < "\xa0"
    return not is_control and not "\ud800" <= letter <= "\udfff"
