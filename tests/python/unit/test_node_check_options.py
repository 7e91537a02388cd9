"""The commands of --node-check as options of the native agent."""

from __future__ import annotations

import sys

import pytest
from elastic.agent.server.node_checks import settings_of
from elastic.errors import ConfigError


def test_built_in_checks_and_programs() -> None:
    gpu = [sys.executable, "-m", "elastic.checks.gpu", "--count", "8"]
    assert settings_of(["gpu --count 8", "network", "/opt/check 'a b'"]) == {
        "node_checks": [("gpu --count 8", gpu), ("/opt/check 'a b'", ["/opt/check", "a b"])],
        "network_check": True,
    }
    assert settings_of(["/bin/network"])["network_check"] is False


@pytest.mark.parametrize("command", ["", " ", "'", "network --fast"])
def test_command_that_is_none(command: str) -> None:
    with pytest.raises(ConfigError, match="check"):
        settings_of([command])
