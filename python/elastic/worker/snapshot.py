"""The state of this rank in memory that outlives its process, for scripts without torch.

    from elastic.worker import snapshot

    saved = snapshot.restore()
    step = saved.step if saved else 0
    ...
    snapshot.save(step, [weights, moments], blob=pickle.dumps(rest))

With torch, ``elastic.torch.Snapshots`` does this. docs/snapshots.md says what is kept, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from elastic.worker._channel import calls

# Of elastic/worker_snapshot.h.
BYTES, FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = range(5)

_KINDS = {"e": FLOAT16, "f": FLOAT32, "d": FLOAT64}
_reported: set[str] = set()


class SnapshotDamaged(RuntimeError):
    """The snapshot of this rank was changed after it was saved.

    Let the process end with it: all ranks of the next round continue from an earlier snapshot.
    """


class Saved(NamedTuple):
    """What this rank continues from. The buffers are read-only, and valid until the second save."""

    step: int
    buffers: list[memoryview]
    blob: bytes
    is_own: bool  # False: with replicated=True, and a rank got the state of another one


def save(step: int, buffers: Sequence[Any], blob: bytes = b"", *, replicated: bool = False) -> bool:
    """Copies the buffers and the blob, as the state of this rank after ``step`` steps.

    Every rank calls it after the same steps. ``replicated``: they are the same on every rank, so
    that any rank of a round of any size may continue from them. Returns False if nothing was kept;
    the reason is logged once.
    """
    views = [memoryview(one) for one in buffers]
    parts: list[Part] = [(blob, BYTES)]
    parts += [(one, _KINDS.get(one.format, BYTES)) for one in views]
    return save_parts(step, parts, replicated)


def restore() -> Saved | None:
    """What all ranks of this round continue from, or None. Call it before the first ``save()``."""
    found = restore_parts()
    if found is None:
        return None
    step, (blob, *buffers), is_own = found
    return Saved(step, buffers, bytes(blob), is_own)


# A C-contiguous buffer and the kind of its numbers; or a function that writes to the view that it
# is called with, that kind, and the size in bytes.
Part = tuple[Any, int] | tuple[Callable[[memoryview], None], int, int]


def save_parts(step: int, parts: list[Part], replicated: bool) -> bool:
    """As ``save()``, of parts that are copied one after the other."""
    if calls.snapshot_save(step, parts, replicated):
        return True
    _report_once("no snapshot was saved")
    return False


def observe(observer: Callable[[int, int, int], None]) -> None:
    """Calls it with the address and the size of each file of this process: with 1 when it is
    mapped, and with 0 before it is unmapped. The first observer of a process is the only one.
    """
    calls.snapshot_observe(observer)


def restore_parts() -> tuple[int, list[memoryview], bool] | None:
    found = calls.snapshot_restore()
    if isinstance(found, bool):
        raise SnapshotDamaged(calls.snapshot_error())
    if found is None:
        _report_once("no snapshot is restored")
        return None
    return found


def _report_once(what: str) -> None:
    why = calls.snapshot_error()
    kind = "".join(one for one in why if one not in "0123456789.")  # free memory changes
    if not why or kind in _reported:
        return
    _reported.add(kind)
    import logging

    logging.getLogger(__name__).warning("%s: %s", what, why)
