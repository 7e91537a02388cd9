"""Every way in which ranks may wait in collective operations for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.collective_scenes import SCENES, check_scene


@pytest.mark.parametrize("name", SCENES)
def test_the_report_of_a_hang_names_the_cause(name: str, tmp_path: Path) -> None:
    check_scene(name, tmp_path)
