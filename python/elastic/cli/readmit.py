"""``elastic-launch readmit``: see ``exclude``."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.cli import exclude


def run(arguments: Sequence[str]) -> int:
    return exclude.run(arguments, "readmit")
