"""The markers of the folders, and signal dispositions for all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_configure() -> None:
    # nohup and background jobs of a shell ignore some signals, and every child inherits that. The
    # tests send these signals and expect an effect.
    standard = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
    }
    for number, handler in standard.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(item.path.relative_to(HERE).parts[0])
