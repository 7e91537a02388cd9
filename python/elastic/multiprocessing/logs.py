"""Which of a worker's streams go to files, to the console, or both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import IntFlag
from typing import NamedTuple, Protocol

from elastic.errors import ConfigError
from elastic.text import is_number

NO_DIRECTORY = f"is {os.devnull}: redirects and tee have no effect"


class Std(IntFlag):
    """A choice of standard streams; torch's names and numbers."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, text: str) -> Std | dict[int, Std]:
        """Parses ``"3"`` for all ranks, or ``"0:3,11:1"`` for single ranks."""
        if text in _STREAMS:
            return cls(int(text))
        streams: dict[int, Std] = {}
        for part in text.split(","):
            rank, colon, choice = part.strip().partition(":")
            if not colon or not is_number(rank) or choice not in _STREAMS:
                raise ConfigError(
                    f"{text!r} selects no streams: expected 0 (none), 1 (stdout), 2 (stderr) or 3 "
                    "(both), or RANK:STREAMS,..."
                )
            if int(rank) in streams:
                raise ConfigError(f"{text!r} names rank {int(rank)} twice")
            streams[int(rank)] = cls(int(choice))
        return streams


_STREAMS = ("0", "1", "2", "3")


class LogOptions(NamedTuple):
    """Where workers' output goes; by local rank where a mapping is given."""

    log_dir: str | None = None
    redirects: Std | Mapping[int, Std] = Std.NONE
    tee: Std | Mapping[int, Std] = Std.NONE
    # Only these ranks' output reaches the console; None: all.
    local_ranks_filter: frozenset[int] | None = None
    merge_lines: bool = False  # an identical line of several ranks is shown once
    # Lines with one of these words are copied to a file of their own.
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    max_bytes: int = 0  # limit of the size of each log file; 0: none
    max_files: int = 5  # of each stream, with that limit
    plug_in: str = ""  # the name of a third-party LogsSpecs; "": none

    @property
    def redirects_any(self) -> bool:
        """Whether the output of some worker is written only to files."""
        return is_any(self.redirects)

    @property
    def writes_any(self) -> bool:
        return is_any(self.redirects) or is_any(self.tee)

    def target(self, local_rank: int, stream: Std) -> str:
        """The target of one stream: "inherit", "file", "tee" or "discard"."""
        tee = stream in of_rank(self.tee, local_rank)
        file = tee or stream in of_rank(self.redirects, local_rank)
        on_console = self.local_ranks_filter is None or local_rank in self.local_ranks_filter
        if not file:
            return "inherit" if on_console else "discard"
        return "tee" if tee and on_console else "file"


class ProvidesLogOptions(Protocol):
    """``DefaultLogsSpecs`` implements it; a plug-in that only has ``reify`` does not."""

    def options(self) -> LogOptions: ...


def log_options(given: LogOptions | ProvidesLogOptions | None) -> LogOptions:
    """Converts either form to the native agent's options."""
    if given is None or isinstance(given, LogOptions):
        return given or LogOptions()
    if not hasattr(given, "options"):
        raise ConfigError(
            f"the native agent cannot use the log files of {type(given).__name__}: "
            "use DefaultLogsSpecs, or HandlerElasticAgent"
        )
    return given.options()


def of_rank(streams: Std | Mapping[int, Std], local_rank: int) -> Std:
    return streams if isinstance(streams, Std) else streams.get(local_rank, Std.NONE)


def is_any(streams: Std | Mapping[int, Std]) -> bool:
    return bool(streams) if isinstance(streams, Std) else any(streams.values())


def parse_words(text: str) -> tuple[str, ...]:
    """``"a,b"`` as a tuple; ``,,`` is a comma within a word."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def parse_ranks(text: str) -> frozenset[int]:
    """``"0,3"`` as a set."""
    parts = [part.strip() for part in text.split(",")]
    if not all(is_number(part) for part in parts):
        raise ConfigError(f"{text!r} is not a list of local ranks: expected N,N,...")
    return frozenset(int(part) for part in parts)
