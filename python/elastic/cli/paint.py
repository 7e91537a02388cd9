"""Colours for the launcher's screens on a terminal: the reports of failures and hangs.

The text stays as it is everywhere else, and wherever it is searched or kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

STDERR = 2
RED, YELLOW, DIM, END = "\x1b[1;31m", "\x1b[1;33m", "\x1b[2m", "\x1b[0m"

_HEADLINE = re.compile(r" failed: |^the job hangs: |^partial exit: ")
_LABEL = re.compile(r"^(    (?:[a-z]+(?: \d+)? +|[^:]+:$|  \| ))")
_SUSPECT = re.compile(r": suspected")


def is_on(environ: Mapping[str, str]) -> bool:
    """Whether stderr is a terminal that shows colours (no-color.org)."""
    is_plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    return not is_plain and os.isatty(STDERR)


def screen(text: str) -> str:
    """The text with colours: its first line if it tells of a failure, labels and the suspect."""
    first, *rest = text.split("\n")
    if _HEADLINE.search(first.partition("elastic-launch: ")[2] or first):
        first = f"{RED}{first}{END}"
    return "\n".join([first, *map(_line, rest)])


def _line(line: str) -> str:
    if _SUSPECT.search(line):
        return f"{YELLOW}{line}{END}"
    return _LABEL.sub(rf"{DIM}\1{END}", line)
