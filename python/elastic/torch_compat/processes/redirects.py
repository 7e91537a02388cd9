"""Sends a standard stream of this process to a file, including what C libraries write."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import CDLL

_DESCRIPTORS = {"stdout": 1, "stderr": 2}


def get_libc() -> CDLL:
    """The C library of this process."""
    from ctypes import CDLL

    return CDLL(None)


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """``std`` is "stdout" or "stderr"; the file is truncated."""
    if std not in _DESCRIPTORS:
        raise ValueError(f"{std!r} is not a stream: expected stdout or stderr")
    descriptor = _DESCRIPTORS[std]
    saved = os.dup(descriptor)
    try:
        with open(to_file, "wb") as file:
            _flush(std)
            os.dup2(file.fileno(), descriptor)
        yield
    finally:
        _flush(std)
        os.dup2(saved, descriptor)
        os.close(saved)


def _flush(std: str) -> None:
    stream = getattr(sys, std)
    if stream is not None:
        stream.flush()


redirect_stdout = partial(redirect, "stdout")
redirect_stderr = partial(redirect, "stderr")
