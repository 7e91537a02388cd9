"""The environment of this process, for programs that use the Python interface.

The command line reads its variables in ``elastic.cli.resolve``, from a mapping.
"""

from __future__ import annotations

import os


def inherited() -> dict[str, str]:
    """A copy of all variables."""
    return dict(os.environ)


def get(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def update(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def remove(name: str) -> None:
    os.environ.pop(name, None)
