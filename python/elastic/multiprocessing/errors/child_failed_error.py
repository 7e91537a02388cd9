"""The exception of a launch whose workers failed, and the decorator that records exceptions."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from elastic import _environment, _torch_bases
from elastic._plug_in import plug_in
from elastic.constants import ERROR_FILE_VARIABLE
from elastic.multiprocessing.errors.error_handler import ErrorHandler, get_error_handler
from elastic.multiprocessing.errors.evidence import ProcessFailure, pass_on

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ChildFailedError(_torch_bases.Error):
    """Workers failed. ``failures`` are by global rank; the earliest one is the root cause."""

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        if not failures:
            raise ValueError("a ChildFailedError needs at least one failure")
        self.name = name
        self.failures = dict(failures)
        Exception.__init__(self, self.format_msg())  # not torch's, which has more arguments

    def __reduce__(self) -> tuple[type[ChildFailedError], tuple[str, dict[int, ProcessFailure]]]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """The global rank of the root cause, and its failure."""
        # A failure of torch's own class has only full seconds.
        times = {
            rank: (getattr(one, "is_consequence", False), getattr(one, "time", one.timestamp))
            for rank, one in self.failures.items()
        }
        rank = min(times, key=lambda rank: times[rank])
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
        lines = [boarder_delim * width, title, rule, "Root Cause (first observed failure):", *cause]
        if others:
            lines += [rule, "Other failures:", *others]
        return "\n".join([*lines, boarder_delim * width])


_torch_bases.derive(ChildFailedError, "multiprocessing.errors", "ChildFailedError")


def _block(rank: int, failure: ProcessFailure) -> list[str]:
    ending = f"{failure.exitcode} (pid: {failure.pid})"
    if failure.exitcode < 0:
        ending = f"{failure.exitcode} ({failure.signal_name()}) (pid: {failure.pid})"
    text = failure.traceback or failure.error() or "\n".join(failure.stderr_tail)
    text = text or failure.message
    if failure.exitcode < 0:
        text = _enriched(text, failure.error_file)
    facts = {
        "time": failure.timestamp_isoformat(),
        "host": os.uname().nodename,
        "rank": f"{rank} (local_rank: {failure.local_rank})",
        "exitcode": ending,
        "error_file": failure.error_file if os.path.exists(failure.error_file) else "",
    }
    lines = [f"  {name:<10}: {fact}" for name, fact in facts.items() if fact]
    if text:
        lines += ["  traceback :", *(f"    {line}" for line in text.rstrip().split("\n"))]
    return lines


def _enriched(message: str, error_file: str) -> str:
    handler = get_error_handler()
    enriched = _call(handler, "maybe_enrich_signal_failure_message", message, error_file)
    return message if enriched is None else str(enriched)


def _call(handler: Any, method: str, *args: Any) -> Any:
    """Calls a method of an error handler, which one for an older torch may lack."""
    call = getattr(handler, method, None)
    if call is not None:
        with plug_in(f"error handler's {method}"):
            return call(*args)
    return None


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
        _call(handler, "set_entrypoint_fn_name", getattr(fn, "__qualname__", None))
        _call(handler, "initialize")
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
                _call(handler, "dump_error_file", failure.error_file, failure.exitcode)
            elif path and failure.has_error_file():
                with plug_in("copy of the error file"):
                    pass_on(failure, path)
            raise
        except Exception as error:
            _call(handler, "record_exception", error)
            raise
        _call(handler, "record_success")
        return result

    return wrapper
