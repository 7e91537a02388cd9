"""The exception of a launch whose workers failed, and the decorator that records exceptions."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from elastic import _environment
from elastic.multiprocessing.errors.error_handler import (
    ERROR_FILE_VARIABLE,
    ErrorHandler,
    get_error_handler,
)
from elastic.multiprocessing.errors.evidence import ProcessFailure, pass_on

logger = logging.getLogger(__name__)

# What a handler that a program has put in place may raise.
_HANDLER_ERRORS = (
    ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ChildFailedError(Exception):
    """Workers failed. ``failures`` are by global rank; the earliest one is the root cause."""

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        if not failures:
            raise ValueError("a ChildFailedError needs at least one failure")
        self.name = name
        self.failures = dict(failures)
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[type[ChildFailedError], tuple[str, dict[int, ProcessFailure]]]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """The global rank of the root cause, and its failure."""
        rank = min(self.failures, key=lambda rank: self.failures[rank].timestamp)
        return rank, self.failures[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        first, root = self.get_first_failure()
        cause = _block(first, root)
        others = [
            line
            for rank, failure in self.failures.items()
            if rank != first
            for line in _block(rank, failure)
        ]
        title = f"{self.name} FAILED"
        width = min(60, max(map(len, [title, *cause, *others])))
        rule = section_delim * width
        lines = [boarder_delim * width, title, rule, "Root cause (first failure):", *cause]
        if others:
            lines += [rule, "Other failures:", *others]
        return "\n".join([*lines, boarder_delim * width])


def _block(rank: int, failure: ProcessFailure) -> list[str]:
    ending = f"{failure.exitcode} (pid: {failure.pid})"
    if failure.exitcode < 0:
        ending = f"{failure.exitcode} ({failure.signal_name()}) (pid: {failure.pid})"
    text = failure.traceback or failure.message or "\n".join(failure.stderr_tail)
    if failure.exitcode < 0:
        text = _enriched(text, failure.error_file)
    facts = {
        "time": failure.timestamp_isoformat(),
        "host": os.uname().nodename,
        "rank": f"{rank} (local_rank: {failure.local_rank})",
        "exitcode": ending,
        # That of an agent without a log directory is removed at its end.
        "error_file": failure.error_file if os.path.exists(failure.error_file) else "",
    }
    lines = [f"  {name:<10}: {fact}" for name, fact in facts.items() if fact]
    if text:
        lines += ["  traceback :", *(f"    {line}" for line in text.rstrip().split("\n"))]
    return lines


def _enriched(message: str, error_file: str) -> str:
    try:
        return get_error_handler().maybe_enrich_signal_failure_message(message, error_file)
    except _HANDLER_ERRORS:
        logger.warning("the error handler failed", exc_info=True)
        return message


def record(
    fn: Callable[_P, _T], error_handler: ErrorHandler | None = None
) -> Callable[_P, _T | None]:
    """Decorates an entry point: an exception is written to the error file, then raised again.

    ``SystemExit`` with code 0 becomes a return of None. The error of failed children of a launcher
    is copied to this process's error file.
    """
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        handler.set_entrypoint_fn_name(getattr(fn, "__qualname__", None))
        handler.initialize()
        try:
            result = fn(*args, **kwargs)
        except SystemExit as error:
            if error.code == 0:
                return None
            raise
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            path = _environment.get(ERROR_FILE_VARIABLE)
            if os.path.isfile(failure.error_file):
                handler.dump_error_file(failure.error_file, failure.exitcode)
            elif path and failure.has_error_file():
                pass_on(failure, path)
            raise
        except Exception as error:
            handler.record_exception(error)
            raise
        handler.record_success()
        return result

    return wrapper
