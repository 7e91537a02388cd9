"""As test_install.py, with the library as a shared object."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.installing import check_consumers, install


@pytest.mark.timeout(1800)  # compiles the library
def test_other_projects_find_the_shared_library(tmp_path: Path) -> None:
    check_consumers(install(tmp_path, "-DBUILD_SHARED_LIBS=ON"), tmp_path)
