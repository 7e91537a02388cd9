"""Which signals ask for an agreed step, and which stop the node."""

from __future__ import annotations

import signal
import time

import pytest
from elastic.cli import console, main
from elastic.constants import ECHO_S


class Agent:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def request_drain(self, number: int, limit: float) -> None:
        self.calls.append(f"drain {number} within {limit:g}")

    def request_stop(self, number: int) -> None:
        self.calls.append(f"stop {number}")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("after", "stops"), [(0.0, 0), (ECHO_S / 2, 0), (ECHO_S, 1)])
def test_a_second_signal_stops_the_node_unless_it_is_an_echo_of_the_first(
    monkeypatch: pytest.MonkeyPatch, after: float, stops: int, second: signal.Signals
) -> None:
    launcher, agent = main.Launcher(console.Console()), Agent()
    monkeypatch.setattr(launcher, "_agent", agent)
    monkeypatch.setattr(launcher, "_drain_timeout", 60.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    launcher._drain(signal.SIGTERM, None)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + after)
    handler = launcher._drain if second == signal.SIGTERM else launcher._handle
    handler(second, None)
    assert agent.calls == ["drain 15 within 60", *[f"stop {second.value}"] * stops]
