"""The boundary to code of others: a handler, a callback or a store that a program has provided.

Such code may raise anything. Where the job does not need its result, the error is logged in one
sentence and the job continues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

logger = logging.getLogger(__name__)


@contextmanager
def plug_in(name: str, failed: set[str] | None = None) -> Iterator[None]:
    """Logs an error of the block, adds ``name`` to ``failed``, and continues after the block."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "sigval"):  # the SignalException of a signal handler, ours or torch's
            raise
        if failed is not None:
            failed.add(name)
        again = "" if failed is None else "; it is not called again"
        with suppress(Exception):  # of a log handler of the program
            logger.warning(
                "the %s failed, and the job continues without it: %s%s",
                *(name, describe(error), again),
            )
            logger.debug("the %s failed", name, exc_info=True)


@contextmanager
def health_check(server: Any) -> Iterator[None]:
    """Runs the health check server of a program, if it has one, during the block."""
    if server is None:
        yield
        return
    try:
        with plug_in("health check"):
            server.start()
        yield
    finally:
        with plug_in("health check"):
            server.stop()


def registered(group: str, name: str) -> Any:
    """The entry point of this name of an installed distribution; None: there is none."""
    from importlib.metadata import entry_points  # slow to import; needed for plug-ins only

    return next(iter(entry_points(group=group, name=name)), None)


def describe(error: BaseException) -> str:
    """The class, the text and the line of an error, in one line."""
    text = " ".join(str(error).split())
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    where = ""
    if innermost is not None:
        where = f" ({innermost.tb_frame.f_code.co_filename}:{innermost.tb_lineno})"
    return f"{type(error).__name__}{': ' * bool(text)}{text}{where}"
