"""The launcher's log messages while a job runs, and their format on the console."""

from __future__ import annotations

import logging

from elastic import _environment
from elastic.cli.console import Console
from elastic.cli.options import PROGRAM
from elastic.constants import NOTICE

RECORD_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(context)s%(message)s"
LINE_FORMAT = f"{PROGRAM}: %(message)s"


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if "\n" in text and record.levelno >= NOTICE:  # a screen
            from elastic.cli import paint

            text = paint.screen(text) if paint.is_on(_environment.inherited()) else text
        self._console.write(text)


def log_to(console: Console, level: int, *, as_records: bool) -> logging.Handler | None:
    """Sends log records to the console; None if the program has handlers of its own.

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
