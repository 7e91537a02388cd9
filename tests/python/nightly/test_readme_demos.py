"""The README's demos in a bare virtual environment, which the script makes."""

from __future__ import annotations

import re

import pytest

from support.readme import check_accuracy, run, shell_commands, snippets

pytestmark = [pytest.mark.timeout(3600), pytest.mark.xdist_group("demo")]
DEMO = ["bash", "examples/demo.sh"]


def test_demo_sets_everything_up_and_trains() -> None:
    check_accuracy(run(DEMO, timeout=3600))


def test_demo_recovers_from_a_killed_worker_as_the_readme_shows() -> None:
    output = run(shell_commands()[3].split(), timeout=3600)
    check_accuracy(output)
    assert "continuing with epoch" in output, output[-2000:]
    printed = [re.sub(r"[\d.]+", "N", line.strip()) for line in output.splitlines()]
    for line in snippets("text")[1].splitlines():
        if not line.startswith("elastic-launch:"):  # on stderr
            assert re.sub(r"[\d.]+", "N", line.strip()) in printed


def test_demo_watches_nodes_recover() -> None:
    # All scenes run in test_scenes.py; one shows that the command finds what it needs.
    check_accuracy(run([*DEMO, "--watch-it-recover", "add-a-node"], timeout=3600))
