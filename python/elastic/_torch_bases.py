"""Exceptions that derive from torch's of the same meaning, once a program has loaded torch elastic.

``except`` clauses with torch's classes then match what elastic raises, and torch's ``@record``
finds the root cause of a failure. This module never imports torch. Classes get their further base
when it is known, so that it does not matter which package a program imports first.
"""

from __future__ import annotations

import sys

PACKAGE = "torch.distributed.elastic"

_waiting: list[tuple[type, str, str]] = []


class Error(Exception):
    """A base to which torch's can be added."""


def derive(ours: type, module: str, name: str) -> None:
    """Lets ``ours`` also derive from the class ``name`` of a module of torch elastic.

    It must derive from ``Error``: Python cannot replace ``Exception`` as the only base.
    """
    _waiting.append((ours, f"{PACKAGE}.{module}", name))
    update()


def update() -> None:
    """To be called before an exception is raised to a program."""
    for entry in tuple(_waiting):
        ours, module, name = entry
        theirs = getattr(sys.modules.get(module), name, None)
        if isinstance(theirs, type):
            _waiting.remove(entry)
            ours.__bases__ = (*ours.__bases__, theirs)
