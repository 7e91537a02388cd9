"""The kernel's state of a process."""

from __future__ import annotations

__all__ = ["is_uninterruptible_state", "read_proc_state"]


def read_proc_state(pid: int) -> str | None:
    """The letter that ``ps`` shows, such as ``S``; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode() if fields else None


def is_uninterruptible_state(state: str | None) -> bool:
    return state is not None and state.startswith("D")
