"""The launcher's log messages on the console: their format, and the colours of its screens.

A screen is the report of a failure or a hang. Colours leave its text as it is everywhere else, and
wherever it is searched or kept.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping

from elastic import _environment
from elastic.cli.console import STDERR, Console
from elastic.cli.options import PROGRAM
from elastic.constants import NOTICE

RECORD_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(context)s%(message)s"
LINE_FORMAT = f"{PROGRAM}: %(message)s"

RED, YELLOW, DIM, END = "\x1b[1;31m", "\x1b[1;33m", "\x1b[2m", "\x1b[0m"

# Compiled when a screen is shown, not at the start.
_HEADLINE = r" failed: |^the job hangs: |^partial exit: "
_LABEL = r"^(    (?:[a-z]+(?: \d+)? +|[^:]+:$|  \| ))"


_FORMAT_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except _FORMAT_ERRORS:  # in the message of a plug-in
            self.handleError(record)
            return
        if "\n" in text and record.levelno >= NOTICE:
            text = screen(text, _environment.inherited())
        self._console.write(text)


def log_to(console: Console, level: int, *, as_records: bool) -> logging.Handler | None:
    """Sends log records to the console; returns None if the program has its own handlers.

    ``as_records``: with time, level and the job's state, for log files; else plain lines.
    """
    logging.addLevelName(NOTICE, "NOTICE")
    root = logging.getLogger()
    if root.handlers:
        return None
    handler = _ConsoleHandler(console)
    text_format = RECORD_FORMAT if as_records else LINE_FORMAT
    handler.setFormatter(logging.Formatter(text_format, defaults={"context": ""}))
    root.addHandler(handler)
    root.setLevel(level)
    return handler


def screen(text: str, environ: Mapping[str, str]) -> str:
    """The text of a screen, with colours if stderr is a terminal that shows them."""
    return painted(text) if shows_colours(environ) else text


def shows_colours(environ: Mapping[str, str]) -> bool:
    """Whether stderr is a terminal that shows colours (no-color.org)."""
    is_plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    return not is_plain and os.isatty(STDERR)


def painted(text: str) -> str:
    """The text with colours: the first line if it reports a failure, labels, and the suspect."""
    first, *rest = text.split("\n")
    if re.search(_HEADLINE, first.partition(f"{PROGRAM}: ")[2] or first):
        first = f"{RED}{first}{END}"
    return "\n".join([first, *map(_painted_line, rest)])


def _painted_line(line: str) -> str:
    if ": suspected" in line:
        return f"{YELLOW}{line}{END}"
    return re.sub(_LABEL, rf"{DIM}\1{END}", line)
