"""Jobs whose ranks stop at an agreed step."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.paths import STUBS

STUB = str(STUBS / "stub_stopping_rank.py")

EXIT_STOPPED = 80
MANY = "1000000"


def await_steps(node: subprocess.Popen[str], ranks: int) -> None:
    """Waits until so many ranks have completed three steps."""
    assert node.stdout is not None
    for _ in range(ranks):
        assert node.stdout.readline().endswith(" runs\n")


def stops(directory: Path) -> dict[str, int]:
    """The step at which each rank has stopped or ended, by ``outcome.round.rank``."""
    found = [*directory.glob("stopped.*"), *directory.glob("ended.*")]
    return {path.name: int(path.read_text()) for path in found}
