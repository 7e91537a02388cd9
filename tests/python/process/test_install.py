"""The installed C++ library: found by CMake, linked and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.installing import WITHOUT_TEST_TOOLS, check_consumers, install
from support.launching import run_program
from support.paths import ROOT


@pytest.mark.timeout(1800)  # compiles the library
def test_other_projects_find_the_static_library(tmp_path: Path) -> None:
    check_consumers(install(tmp_path, "-DBUILD_SHARED_LIBS=OFF"), tmp_path)


def test_building_tests_without_their_tools_is_an_error_with_a_message(tmp_path: Path) -> None:
    done = run_program(
        ["cmake", "-S", ROOT, "-B", tmp_path, "-DELASTIC_BUILD_TESTS=ON", WITHOUT_TEST_TOOLS]
    )
    output = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "needs GoogleTest" in output and "leave the option off" in output, output
