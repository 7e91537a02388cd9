"""Modules that an agent loads while the workers run."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

_AFTER = ("json", "elastic.agent.server.timeline", "elastic.multiprocessing.errors.evidence")
_IDLE_S = 1.0  # without an event: the workers have begun, and no call waits for this thread


class Later:
    """Loads the modules that a failure needs before it, while the workers run.

    A file that can no longer be read (no free descriptor, a lost file system) must not end the
    agent. ``modules``: further ones.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = [*_AFTER, *modules]
        self._may_load = True

    def delay(self, other: float | None) -> float | None:
        """How long to wait for an event; None: no limit. ``other``: for another reason."""
        if not self._may_load:
            return other
        return _IDLE_S if other is None else min(other, _IDLE_S)

    def step(self, *, is_idle: bool) -> None:
        """Loads the modules if no event came. A failed attempt is repeated after the next event."""
        if is_idle and self._may_load:
            self.load()
        self._may_load = bool(self._modules) and not is_idle

    def load(self) -> None:
        """Loads what can be loaded now."""
        self._modules = [name for name in self._modules if not _is_loaded(name)]


def _is_loaded(module: str) -> bool:
    try:
        importlib.import_module(module)
    except (ImportError, OSError):  # the code that needs it reports the error
        return False
    return True
