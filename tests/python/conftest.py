"""The markers of the folders, what runs in the nightly only, and signals for all tests."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rendezvous_nodes import etcd_server

for _module, _name, _value in getattr(sys, "old_python_names", ()):  # support/old_python
    setattr(_module, _name, _value)

pytest_plugins = ["support.retrying"]
HERE = Path(__file__).parent
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["with_torch/*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly", action="store_true", help="run tests in quarantine and costly variants, too"
    )


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(item.path.relative_to(HERE).parts[0])
        quarantine = item.get_closest_marker("quarantine")
        if quarantine is not None and not config.getoption("--nightly"):
            reason = f"in quarantine until {quarantine.kwargs['until']}: {quarantine.kwargs['why']}"
            item.add_marker(pytest.mark.skip(reason=reason))
    # The longest begin first: no core idles when the others have ended.
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an etcd that all tests of this process share: they choose different names."""
    with etcd_server(tmp_path_factory.mktemp("etcd")) as endpoint:
        yield endpoint
