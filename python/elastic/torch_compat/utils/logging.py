"""Loggers with the level that ``LOGLEVEL`` names."""

from __future__ import annotations

import logging
import sys

from elastic import _environment

_DEFAULT_LEVEL = "WARNING"


def get_log_level() -> str:
    """The level of the loggers of ``get_logger`` unless ``LOGLEVEL`` is set."""
    return _DEFAULT_LEVEL


def get_logger(name: str | None = None) -> logging.Logger:
    """The logger of this name; None: of the calling module."""
    if name is None:
        name = str(sys._getframe(1).f_globals.get("__name__", ""))
    logger = logging.getLogger(name)
    text = _environment.get("LOGLEVEL") or _DEFAULT_LEVEL
    level = _environment.log_level(text)
    logger.setLevel(text if level is None else level)
    return logger
