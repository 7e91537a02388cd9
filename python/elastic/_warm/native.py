"""Calls of the C library, prepared before any module is imported that could change them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_MM = 35
_PR_SET_MM_ARG_END = 9
_ARG_START_FIELD = 48 - 3  # of /proc/self/stat (proc(5)), after the name
_OPENBLAS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_",
             "scipy_openblas_set_num_threads", "openblas_set_num_threads")  # fmt: skip

_libc = ctypes.CDLL(None)


def flush() -> None:
    """Writes the buffers of all C streams."""
    _libc.fflush(None)


def end_with_parent(signal: int) -> None:
    """The kernel sends the signal when the parent has ended."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0)


class CommandLine:
    """The memory that /proc/PID/cmdline shows."""

    def __init__(self) -> None:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        self._start = int(fields[_ARG_START_FIELD])
        self._size = int(fields[_ARG_START_FIELD + 1]) - self._start

    def write(self, argv: list[str]) -> None:
        if self._start == 0:
            return
        text = b"\0".join(map(os.fsencode, argv))[: self._size - 1]
        ctypes.memmove(self._start, text + bytes(self._size - len(text)), self._size)
        # Fails without CAP_SYS_RESOURCE; then NULs follow the last argument.
        end = ctypes.c_ulong(self._start + len(text) + 1)
        _libc.prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, end, 0, 0)


def openblas_setters() -> list[Callable[[int], Any]]:
    """The functions that set the number of threads of the OpenBLAS libraries in this process.

    They read OMP_NUM_THREADS when they are loaded.
    """
    with open("/proc/self/maps") as file:
        paths = {line.split(None, 5)[5].strip() for line in file if "openblas" in line}
    setters = []
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        name = next((name for name in _OPENBLAS if hasattr(library, name)), None)
        if name is not None:
            setters.append(getattr(library, name))
    return setters
