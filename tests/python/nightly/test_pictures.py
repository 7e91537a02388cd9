"""The pictures of the documents, which are made from a real job."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from support.launching import clean_environment
from support.paths import ROOT

pytest.importorskip("rich")
pytest.importorskip("aiohttp")
from support import browser

pytestmark = pytest.mark.timeout(900)


@pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")
def test_the_pictures_are_made_from_a_real_job(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools/gen_pictures.py"), "--folder", str(tmp_path)]
    subprocess.run(command, check=True, env=clean_environment())
    picture = (tmp_path / "dashboard.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == 1000 and height > 500
    drawn = (tmp_path / "status.svg").read_text().replace("&#160;", " ")
    assert "HUNG" in drawn and "suspect: rank 2, in read_bytes" in drawn
    assert "https://cdn" not in drawn
    assert sorted(path.name for path in (ROOT / "docs/pictures").iterdir()) == sorted(
        path.name for path in tmp_path.iterdir()
    )
