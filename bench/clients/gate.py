"""Starts forked processes together and measures the time until the last one has finished."""

from __future__ import annotations

import os
import struct
import time

STAMP = struct.Struct("=q")


class Gate:
    """Lets the parent hold all processes until each has arrived, and start them at once."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._arrived = os.pipe()
        self._open = os.pipe()
        self._left = os.pipe()

    def pass_through(self) -> None:
        os.write(self._arrived[1], b"a")
        os.read(self._open[0], 1)

    def leave(self) -> None:
        os.write(self._left[1], STAMP.pack(time.monotonic_ns()))

    def open(self) -> int:
        """In the parent: waits for all processes, releases them and returns the time."""
        for _ in range(self._processes):
            os.read(self._arrived[0], 1)
        now = time.monotonic_ns()
        os.write(self._open[1], b"o" * self._processes)
        return now

    def time(self) -> float:
        """In the parent: seconds from the gate's opening to the last process's leave()."""
        begun = self.open()
        stamps = [os.read(self._left[0], STAMP.size) for _ in range(self._processes)]
        last: int = max(STAMP.unpack(stamp)[0] for stamp in stamps)
        return (last - begun) / 1e9
