"""Whether a file of a loaded module was changed after the import."""

from __future__ import annotations

import os
import sys
import time

# One check is enough for the workers that are started together. A restart takes longer than this.
_VALID_S = 0.005

_stat, _clock = os.stat, time.monotonic


class Files:
    """The files of all modules, as they are when this object is made."""

    def __init__(self) -> None:
        paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        self._files = {
            path: state
            for path in paths
            if isinstance(path, str) and os.path.isabs(path) and (state := _state(path))
        }
        self._checked_at = 0.0

    def changed(self) -> str:
        """The first file that is not the same any more; empty: all are."""
        if _clock() - self._checked_at < _VALID_S:
            return ""
        self._checked_at = _clock()
        return next((path for path, state in self._files.items() if _state(path) != state), "")


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        state = _stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
