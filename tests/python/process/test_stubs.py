"""The generated stub and page match the package. (tests/run.sh runs mypy with the stub.)"""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.paths import ROOT


def test_stub_is_what_the_generator_writes() -> None:
    pytest.importorskip("pybind11_stubgen")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_stubs.py"), "--print"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    written = (ROOT / "python" / "elastic" / "_C.pyi").read_text()
    assert written == done.stdout, "run tools/gen_stubs.py"


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="other versions of Python write signatures differently"
)
def test_api_page_is_what_the_generator_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_api_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"run tools/gen_api_page.py\n{done.stderr}"
