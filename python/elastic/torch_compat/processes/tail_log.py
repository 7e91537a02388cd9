"""Follows log files of processes and writes their lines, each with a prefix, to one stream.

The native agent follows its workers' files itself; this is for processes of ``start_processes``
and for the agent of plug-ins.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread
from typing import TextIO

from elastic.multiprocessing.logs_specs import LogsDest

logger = logging.getLogger(__name__)


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Writes the lines of ``file`` until ``finished`` is set and the end of the file is reached.

    A last line without a newline is written at the end. A file that never appears has no lines.
    """
    while not os.path.exists(file):
        if finished.wait(interval_sec) and not os.path.exists(file):
            return
    partial = ""
    with open(file, encoding="utf-8", errors="replace", newline="\n") as stream:
        while True:
            is_last = finished.is_set()
            while text := stream.readline():
                partial += text
                if partial.endswith("\n"):
                    _write(header, partial, dst, log_line_filter)
                    partial = ""
            if is_last:
                break
            finished.wait(interval_sec)
    if partial:
        _write(header, f"{partial}\n", dst, log_line_filter)


def _write(
    header: str, line: str, dst: TextIO, log_line_filter: Callable[[str], bool] | None
) -> None:
    if log_line_filter is None or log_line_filter(line):
        dst.write(f"{header}{line}")
        dst.flush()


class TailLog:
    """Follows the files of all ranks. ``dst`` is a stream, or the path of a file that is made."""

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO | str,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Callable[[str], bool] | None = None,
    ) -> None:
        self._name = name
        self._log_files = dict(log_files)
        self._own: TextIO | None = None
        if isinstance(dst, str):
            self._own = dst = open(dst, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._dst: TextIO = dst
        self._prefixes = log_line_prefixes or {}
        self._interval_sec = interval_sec
        self._filter = log_line_filter
        self._finished = {rank: Event() for rank in log_files}
        self._followers: list[Thread] = []
        self._has_stopped = False

    def start(self) -> TailLog:
        for rank in self._log_files:
            # A daemon: a program that never calls stop must be able to end.
            follower = Thread(
                target=self._follow, args=(rank,), name=f"TailLog-{self._name}", daemon=True
            )
            follower.start()
            self._followers.append(follower)
        return self

    def _follow(self, rank: int) -> None:
        header = self._prefixes.get(rank, f"[{self._name}{rank}]:")
        try:
            tail_logfile(
                header,
                self._log_files[rank],
                self._dst,
                self._finished[rank],
                self._interval_sec,
                self._filter,
            )
        except (OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            logger.error("cannot copy the output of %s: %s", self._name, error)

    def stop(self) -> None:
        """Writes the remaining lines, then ends. If a destination fails, its lines are lost."""
        for event in self._finished.values():
            event.set()
        for follower in self._followers:
            follower.join()
        self._followers.clear()
        if self._own is not None:
            self._own.close()
        self._has_stopped = True

    def stopped(self) -> bool:
        return self._has_stopped


def _has_any(words: Sequence[str]) -> Callable[[str], bool]:
    return lambda line: any(word in line for word in words)


def tail_logs(
    name: str,
    dest: LogsDest,
    prefixes: Mapping[int, str] | None,
    stdout_words: Sequence[str] | None,
    stderr_words: Sequence[str] | None,
) -> list[TailLog]:
    """The followers for one start: all lines to the console, lines with these words to a file."""
    tails = [
        TailLog(name, dest.tee_stdouts, sys.stdout, prefixes),
        TailLog(name, dest.tee_stderrs, sys.stderr, prefixes),
    ]
    for words, files, path in (
        (stdout_words, dest.tee_stdouts, dest.filtered_stdout),
        (stderr_words, dest.tee_stderrs, dest.filtered_stderr),
    ):
        if words and path:
            tails.append(TailLog(name, files, path, prefixes, log_line_filter=_has_any(words)))
    return tails
