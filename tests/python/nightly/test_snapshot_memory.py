"""The memory of snapshots and copies at the size of a real model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from process.test_snapshot_copies import check_memory

NEEDED_BYTES = 18 << 30


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_eight_ranks_with_half_a_gigabyte_and_their_copies(tmp_path: Path) -> None:
    (available,) = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if int(available) << 10 < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GiB of free memory")
    check_memory(512 << 20, 4, tmp_path, deadline_s=800)
