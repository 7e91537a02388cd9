"""Which rank the others wait for in a collective operation, with a plain script and gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.collective_scenes import check_scene


@pytest.mark.parametrize("name", ["not-entered", "order"])
def test_the_report_of_a_hang_names_the_cause(name: str, tmp_path: Path) -> None:
    check_scene(name, tmp_path)
