"""The event log: one JSON object per line for each transition of an agent (docs/observing.md).

Several agents may append to one file of a local file system: each line is written by one call.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from errno import ENXIO
from typing import Any

from elastic import _files
from elastic._writer import Writer
from elastic.errors import ConfigError

logger = logging.getLogger(__name__)

SCHEMA = 1
CLOCK_STEP_S = 0.01
OPEN_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 2.0  # for a file system that does not respond, at the end of the job


class EventLog:
    """Appends to a file. An error while the job runs is logged once and does not affect the job."""

    def __init__(
        self,
        path: str,
        *,
        open_timeout: float = OPEN_TIMEOUT_S,
        is_stopped: Callable[[], bool] | None = None,
        **common: Any,
    ) -> None:
        """``common``: fields of every line. Raises ConfigError if the file cannot be opened.

        ``is_stopped``: ends the wait for a file system that does not respond.
        """
        self._path = path
        self._common = common
        # A pipe that is full, or has no reader, must not block the agent.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._file = _files.within(
                open_timeout, lambda: os.open(path, flags, 0o644), is_stopped
            )
        except OSError as error:
            why = "no process reads this pipe" if error.errno == ENXIO else error.strerror or error
            raise ConfigError(f"cannot write the event log {path}: {why}") from error
        self._has_failed = False
        self._writer = Writer(self._append)
        self._offset = 0.0  # the wall clock minus the monotonic clock

    def _wall_time(self, at: float) -> float:
        """Keeps distances exact, unless the wall clock was set."""
        offset = time.time() - time.monotonic()
        if abs(offset - self._offset) > CLOCK_STEP_S:
            self._offset = offset
        return self._offset + at

    def write(self, event: str, at: float | None = None, **fields: Any) -> None:
        """``at``: the time of the event on the monotonic clock; None: now."""
        when = self._wall_time(time.monotonic() if at is None else at)
        line = {"schema": SCHEMA, "event": event, "time": round(when, 6)} | self._common | fields
        if not self._writer.put(json.dumps(line, default=str).encode() + b"\n"):
            self._note("its file system does not respond")

    def _append(self, data: bytes) -> None:
        try:
            if os.write(self._file, data) != len(data):
                self._note("no space left")
        except OSError as error:
            self._note(str(error.strerror))

    def _note(self, problem: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("cannot write the event log %s: %s", self._path, problem)

    def close(self) -> None:
        """Waits for a file system that does not respond at most two seconds."""
        if self._writer.flush(CLOSE_TIMEOUT_S):
            os.close(self._file)
        else:
            self._note("its file system does not respond")
