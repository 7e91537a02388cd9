"""Whether a file of a loaded module was changed after the import."""

from __future__ import annotations

import os
import sys

_stat = os.stat


class Files:
    """The files of all modules, as they are when this object is made."""

    def __init__(self) -> None:
        paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        self._files = {
            path: state
            for path in paths
            if isinstance(path, str) and os.path.isabs(path) and (state := _state(path))
        }

    def changed(self) -> str:
        """The first file that has changed; "": none has."""
        return next((path for path, state in self._files.items() if _state(path) != state), "")


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        state = _stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
