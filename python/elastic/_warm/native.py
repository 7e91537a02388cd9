"""Calls of the C library, prepared before any module is imported that could change them."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Any

_MADV_COLLAPSE = 25
_HUGE_PAGE_BYTES = 2 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PAGE_ENTRY = struct.Struct("Q")
_IS_PRESENT = 1 << 63

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


def use_huge_pages() -> None:
    """Moves this process's data into huge pages, where half of one is in use.

    Most of a fork's time is the copy of the page tables: 8 ms with torch imported, and 1 ms with
    huge pages. A write of the forked process copies one small page as before. Needs Linux 6.1
    (MADV_COLLAPSE of madvise(2)); without it nothing changes.
    """
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for start, end in _data_mappings():
            first = -start % _HUGE_PAGE_BYTES + start
            for address in range(first, end - _HUGE_PAGE_BYTES + 1, _HUGE_PAGE_BYTES):
                if _present_pages(pages.fileno(), address) < _HUGE_PAGE_BYTES // _PAGE_BYTES // 2:
                    continue
                size = ctypes.c_size_t(_HUGE_PAGE_BYTES)
                _libc.madvise(ctypes.c_void_p(address), size, _MADV_COLLAPSE)


def _data_mappings() -> list[tuple[int, int]]:
    """First and last address of the private writable mappings without a file."""
    with open("/proc/self/maps", "rb") as file:
        fields = [line.split() for line in file]
    ranges = [range for range, mode, _, _, inode, *_ in fields if mode == b"rw-p" and inode == b"0"]
    return [(int(start, 16), int(end, 16)) for start, end in (r.split(b"-") for r in ranges)]


def _present_pages(pagemap: int, address: int) -> int:
    size = _HUGE_PAGE_BYTES // _PAGE_BYTES * _PAGE_ENTRY.size
    entries = os.pread(pagemap, size, address // _PAGE_BYTES * _PAGE_ENTRY.size)
    return sum(1 for (entry,) in _PAGE_ENTRY.iter_unpack(entries) if entry & _IS_PRESENT)


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
    with open("/proc/self/maps", "rb") as file:
        lines = map(os.fsdecode, file)
        paths = {line.split(None, 5)[5].strip() for line in lines if "openblas" in line}
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
