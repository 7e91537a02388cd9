"""What several tests of hangs read."""

from __future__ import annotations

import re


def idle_seconds(text: str) -> float:
    """The time without progress in the text of a hang."""
    found = re.search(r"no rank (?:has )?made progress for ([\d.]+) s", text)
    assert found is not None, text
    return float(found[1])
