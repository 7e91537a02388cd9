"""What programs give to elastic to receive its records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from elastic import metrics


class Lines(logging.Handler):
    """The messages that a logger received."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def recorded_events(*destinations: str) -> Iterator[list[str]]:
    """The events for these destinations, as JSON."""
    receiver = Lines()
    loggers = [logging.getLogger(f"torchelastic-events-{name}") for name in destinations]
    for logger in loggers:
        logger.addHandler(receiver)
        logger.setLevel(logging.INFO)
    try:
        yield receiver.lines
    finally:
        for logger in loggers:
            logger.removeHandler(receiver)


class Values(metrics.MetricHandler):
    """The metrics in their order."""

    def __init__(self) -> None:
        self.values: list[tuple[str, str, int]] = []  # group, name and value

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.values.append(metric_data[1:])

    def by_name(self) -> dict[str, int]:
        return {name: value for _, name, value in self.values}
