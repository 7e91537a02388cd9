"""What modules print when they are imported: every worker prints it, as a fresh process does."""

from __future__ import annotations

import contextlib
import os

from elastic._unnamed_file import unnamed_file

_STREAMS = (1, 2)


class Printed:
    """Takes the place of stdout and stderr while modules are imported."""

    def __init__(self) -> None:
        self._files: list[int] = []
        self._before = [b""] * len(_STREAMS)
        self._texts = list(self._before)

    def begin(self) -> None:
        """What is printed from now on follows what was printed until ``settle``."""
        self._before = self._texts
        for number in self._files:
            os.close(number)
        self._files = [unnamed_file("elastic-template-output") for _ in _STREAMS]
        for stream, number in zip(_STREAMS, self._files, strict=True):
            os.dup2(number, stream)

    def size(self) -> int:
        """The bytes since ``begin``."""
        return sum(os.fstat(number).st_size for number in self._files)

    def settle(self) -> None:
        """Keeps what was printed; what follows is dropped."""
        read = [os.pread(number, os.fstat(number).st_size, 0) for number in self._files]
        self._texts = [before + text for before, text in zip(self._before, read, strict=True)]

    def repeat(self) -> None:
        """In a worker, whose streams are its own."""
        for stream, text in zip(_STREAMS, self._texts, strict=True):
            with contextlib.suppress(OSError):  # as of a closed pipe: the script will find out
                while text:
                    text = text[os.write(stream, text) :]
