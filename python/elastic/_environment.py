"""The environment of this process, and what it means to a launcher and its workers.

The command line reads its variables in ``elastic.cli.resolve``, from a mapping.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from elastic.constants import LOG_LEVEL_VARIABLE, LOG_LEVELS, TOKEN_VARIABLE

LOG_LEVEL_DIGITS_MAX = 9


def inherited() -> dict[str, str]:
    """A copy of all variables."""
    return dict(os.environ)


def of_workers(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that workers inherit: not the job's token, a secret of the launcher."""
    return {name: text for name, text in environ.items() if name != TOKEN_VARIABLE}


def of_ranks(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """As ``of_workers()``, with the default that torch's agent adds.

    torch's loggers in a worker take only the name of a standard level, in upper case.
    """
    environment = of_workers(environ)
    if (level := log_level(environ.get(LOG_LEVEL_VARIABLE, ""))) is not None:
        environment[LOG_LEVEL_VARIABLE] = standard_level(level)
    if "NCCL_ASYNC_ERROR_HANDLING" not in environment:
        environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return environment


def log_level(text: str) -> int | None:
    """The number of a level that ``LOGLEVEL`` names; None: there is no such level."""
    is_number = text.isascii() and text.isdigit() and len(text) <= LOG_LEVEL_DIGITS_MAX
    return int(text) if is_number else LOG_LEVELS.get(text.upper())


def standard_level(level: int) -> str:
    """The name of the lowest standard level that logs nothing below ``level``."""
    names = ("NOTSET", "DEBUG", "INFO", "WARNING", "ERROR")
    return next((name for name in names if LOG_LEVELS[name] >= level), "CRITICAL")


def interpreter(environ: Mapping[str, str]) -> str:
    """The interpreter of the workers."""
    return environ.get("PYTHON_EXEC") or sys.executable


def shares_store(environ: Mapping[str, str]) -> bool:
    """Whether the workers use the agent's store, or rank 0's worker hosts one."""
    return environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"


def get(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def update(variables: dict[str, str]) -> None:
    os.environ.update(variables)
