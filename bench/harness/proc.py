"""Facts about a process, from /proc."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scheduled:
    """CPU time of all threads of a process, and how often they were scheduled."""

    cpu_ns: int
    timeslices: int

    def __add__(self, other: Scheduled) -> Scheduled:
        return Scheduled(self.cpu_ns + other.cpu_ns, self.timeslices + other.timeslices)

    def __sub__(self, other: Scheduled) -> Scheduled:
        return Scheduled(self.cpu_ns - other.cpu_ns, self.timeslices - other.timeslices)


def scheduled(pids: list[int]) -> Scheduled:
    """The sum over processes, from schedstat, which counts in nanoseconds."""
    total = Scheduled(0, 0)
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            cpu_ns, _, timeslices = (task / "schedstat").read_text().split()
            total += Scheduled(int(cpu_ns), int(timeslices))
    return total


def _kib_field(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"{path} has no {name}: the process has ended")


def peak_resident_bytes(pid: int) -> int:
    """VmHWM: the peak of the process's resident memory, including shared pages."""
    return _kib_field(f"/proc/{pid}/status", "VmHWM")


def proportional_bytes(pid: int) -> int:
    """PSS: current resident memory, each shared page divided by the number of its users."""
    return _kib_field(f"/proc/{pid}/smaps_rollup", "Pss")


def private_bytes(pid: int) -> int:
    """Current resident memory that no other process shares."""
    path = f"/proc/{pid}/smaps_rollup"
    return _kib_field(path, "Private_Clean") + _kib_field(path, "Private_Dirty")


def anonymous_bytes(pid: int) -> int:
    """RssAnon: current resident anonymous memory, the process's own data."""
    return _kib_field(f"/proc/{pid}/status", "RssAnon")


def descendants(pid: int) -> list[int]:
    """Every process below this one, parents first."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # a thread or the process has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def described(pid: int) -> str:
    """Its state and command line, for a message; "gone" if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return f"{state} {b' '.join(words).decode(errors='replace')}"
