"""The README's demos in a bare virtual environment, which the script makes."""

from __future__ import annotations

import pytest

from support.readme import check_accuracy, run, shell_commands

pytestmark = [pytest.mark.timeout(3600), pytest.mark.xdist_group("demo")]


def test_demo_sets_everything_up_and_trains() -> None:
    check_accuracy(run(shell_commands()[0].split(), timeout=3600))


def test_demo_recovers_from_a_killed_worker() -> None:
    output = run(shell_commands()[1].split(), timeout=3600)
    check_accuracy(output)
    assert "continuing with epoch" in output, output[-2000:]


def test_demo_watches_nodes_recover() -> None:
    # All scenes run in test_scenes.py; one shows that the command finds what it needs.
    check_accuracy(run([*shell_commands()[2].split(), "add-a-node"], timeout=3600))
