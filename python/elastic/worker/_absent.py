"""What ``elastic._worker`` does in a process that elastic did not start, without that extension.

On a system for which elastic is not built, such as a laptop with macOS or Windows, an instrumented
script runs unchanged.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from collections.abc import Sequence as _Sequence
from time import sleep as _sleep

from elastic import _environment


def progress(step: int, /) -> None:
    """Has no effect here."""


def count(step: int, /) -> None:
    """Has no effect here."""


def should_stop(step: int, /) -> bool:
    return False


def has_stopped() -> bool:
    return False


def stop_reason() -> str | None:
    return None


def round() -> int:
    return 0


def is_restart() -> bool:
    return _environment.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def open() -> bool:
    return False


def enter(name: str, limit: float, /) -> None:
    """Has no effect here."""


def leave() -> None:
    """Has no effect here."""


def join_membership() -> bool:
    return False


def round_is_over() -> bool:
    return False


def wait_until_over(seconds: float, /) -> bool:
    _sleep(min(max(seconds, 0), 1))
    return False


def begin_sockets() -> None:
    """Has no effect here."""


def end_sockets(port: int, /) -> None:
    """Has no effect here."""


def leave_round() -> None:
    """Has no effect here."""


def wait_for_round(timeout: float, /) -> bytes | None:
    raise RuntimeError("there is no next round: this process has no launcher")


def page() -> object:
    return None


def snapshot_observe(observer: _Callable[[int, int, int], None], /) -> None:
    """Has no effect here."""


def snapshot_save(step: int, parts: _Sequence[tuple[object, ...]], is_replicated: bool, /) -> bool:
    return False


def snapshot_restore() -> tuple[int, list[memoryview], bool] | bool | None:
    return None


def snapshot_error() -> str:
    return "this process has no launcher that keeps snapshots"


def free_signal() -> int:
    return 0


def stacks_descriptor() -> int:
    return -1


def watch_errors() -> None:
    """Has no effect here."""


def offer_stacks(number: int, /) -> None:
    """Has no effect here."""
