"""The paths of the programs under test and of those they are compared with."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harness.figures import Missing

BENCH = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Finds programs; raises Missing with an instruction for a program that is not there."""

    build: Path  # of the release preset
    torchrun: Path | None = None  # None: this interpreter's

    def built(self, name: str) -> str:
        path = self.build / "bench" / name
        if not path.exists():
            raise Missing(f"{path} is not built (cmake --build --preset release --target bench)")
        return str(path)

    def coordinator(self) -> str:
        path = self.build / "csrc" / "coordinator" / "elastic-coordinator"
        if not path.exists():
            raise Missing(f"{path} is not built (cmake --build --preset release --target bench)")
        return str(path)

    def client(self, name: str) -> list[str]:
        return [sys.executable, str(BENCH / "clients" / name)]

    def launcher(self, name: str) -> list[str]:
        """The command of "elastic" or "torchrun"."""
        if name == "elastic":
            self.require_module("elastic")
            return _script("elastic-launch") or [sys.executable, "-m", "elastic"]
        if self.torchrun is not None:
            if not self.torchrun.exists():
                raise Missing(f"{self.torchrun} does not exist")
            return [str(self.torchrun)]
        self.require_module("torch")
        return _script("torchrun") or [sys.executable, "-m", "torch.distributed.run"]

    def require_module(self, name: str) -> None:
        if importlib.util.find_spec(name) is None:
            raise Missing(f"{sys.executable} has no module {name}")

    def installed(self, name: str) -> str:
        path = shutil.which(name)
        if path is None:
            raise Missing(f"{name} is not installed")
        return path


def _script(name: str) -> list[str]:
    """A console script of this interpreter, or of the one that its virtual environment builds on.

    The interpreter runs it directly, so that a version manager's wrapper is not measured.
    """
    for directory in (sysconfig.get_path("scripts"), str(Path(sys.base_prefix) / "bin")):
        path = Path(directory) / name
        if path.exists():
            return [str(path)]
    return []
