"""The two ways in which a test may wait without an event; no other file of the tests sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from elastic.constants import ECHO_S

DEADLINE_S = 250.0  # for what takes seconds on an idle machine; a test has 300 s in all
FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.02


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for something that sends no event; fails at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    pause = FIRST_PAUSE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(pause)  # spinning would take a core from what the test waits for
        pause = min(2 * pause, LAST_PAUSE_S)


def stall_for_test(seconds: float) -> None:
    """A deliberate pause, for tests that vary the moment of an event."""
    time.sleep(seconds)


def let_echoes_pass() -> None:
    """Waits until another signal is no echo of the first."""
    stall_for_test(ECHO_S)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that are made at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [call.result(DEADLINE_S) for call in [pool.submit(call) for call in calls]]
