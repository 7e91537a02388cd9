"""Stubs that are written in C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.paths import STUBS


def compile_stub(name: str, output: Path, *options: str) -> str:
    """Compiles a file of ``STUBS`` and returns the path of the result. Skips without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-o", str(output), str(STUBS / name), *options], check=True)
    return str(output)


def compile_library(name: str, output: Path, *options: str) -> str:
    """As :func:`compile_stub`, a shared library."""
    return compile_stub(name, output, "-shared", "-fPIC", *options)
