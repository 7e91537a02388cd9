"""The stub matches the native module, and the package passes mypy with it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
    )


@needs("pybind11_stubgen")
def test_stub_is_what_the_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_stubs.py"), "--print"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    written = (ROOT / "python" / "elastic" / "_C.pyi").read_text()
    assert written == done.stdout, "run tools/gen_stubs.py"


@needs("mypy")
def test_package_passes_mypy_strict(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="other versions of Python write signatures differently"
)
def test_api_page_is_what_the_generator_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_api_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"run tools/gen_api_page.py\n{done.stderr}"
