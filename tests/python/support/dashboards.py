"""The dashboard as a process of its own, and what its page receives."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.launching import launched


@contextmanager
def served(endpoint: str, *words: str) -> Iterator[str]:
    """The address of a dashboard for this endpoint."""
    with launched("dashboard", endpoint, "--bind=127.0.0.1:0", *words) as process:
        line = process.stderr.readline()
        assert line.startswith("elastic-launch dashboard: http://127.0.0.1:"), line
        yield line.split()[-1]
        process.kill()


def events(url: str) -> Iterator[tuple[str, Any]]:
    with urllib.request.urlopen(f"{url}events", timeout=120) as stream:
        kind = ""
        for line in stream:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)
