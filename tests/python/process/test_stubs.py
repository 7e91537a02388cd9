"""The generated stub and page match the package. (tests/run.sh runs mypy with the stub.)"""

from __future__ import annotations

import sys

import pytest

from support.launching import run_program
from support.paths import ROOT


def test_stub_is_what_the_generator_writes() -> None:
    pytest.importorskip("pybind11_stubgen")
    done = run_program([sys.executable, str(ROOT / "tools" / "gen_stubs.py"), "--print"])
    assert done.returncode == 0, done.stderr
    written = (ROOT / "python" / "elastic" / "_C.pyi").read_text()
    assert written == done.stdout, "run tools/gen_stubs.py"


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="other versions of Python write signatures differently"
)
def test_api_page_is_what_the_generator_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_api_page.py"), "--check"]
    done = run_program(command)
    assert done.returncode == 0, f"run tools/gen_api_page.py\n{done.stderr}"
