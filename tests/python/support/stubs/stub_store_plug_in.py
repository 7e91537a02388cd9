"""A third-party store, in Python: a folder whose files are numbered versions."""

import os
from collections.abc import Mapping
from pathlib import Path


class Folder:
    name = "numbered"

    def __init__(self, folder: Path, colour: str | None) -> None:
        self._folder = folder
        self._colour = colour  # a key of --rdzv-conf: nodes give it, observers do not
        folder.mkdir(parents=True, exist_ok=True)

    def get_state(self) -> tuple[bytes, int] | None:
        newest = max((int(one) for one in os.listdir(self._folder) if one.isdigit()), default=0)
        return ((self._folder / str(newest)).read_bytes(), newest) if newest else None

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        assert self._colour == "blue"
        mine = self._folder / f"new-{os.getpid()}"
        mine.write_bytes(state)
        version = (token or 0) + 1
        try:
            os.link(mine, self._folder / str(version))  # one process can do that
        except FileExistsError:
            stored = self.get_state()
            return None if stored is None else (*stored, False)
        finally:
            mine.unlink()
        return state, version, True


def make(endpoint: str, run_id: str, parameters: Mapping[str, str]) -> Folder:
    return Folder(Path(endpoint) / run_id, parameters.get("colour"))
