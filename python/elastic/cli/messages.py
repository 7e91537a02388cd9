"""What the launcher logs while a job runs, and how it looks on the console."""

from __future__ import annotations

import logging

from elastic.cli.console import Console

RECORD_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.write(self.format(record))


def log_to(console: Console, level: int) -> logging.Handler | None:
    """Sends log records to the console; None if the program has handlers of its own."""
    root = logging.getLogger()
    if root.handlers:
        return None
    handler = _ConsoleHandler(console)
    handler.setFormatter(logging.Formatter(RECORD_FORMAT))
    root.addHandler(handler)
    root.setLevel(level)
    return handler
