"""What ranks forget in /dev/shm is removed, however they end, before the next ones start."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.shared_memory import WAYS, files_left


@pytest.mark.parametrize("way", WAYS)
def test_segments_and_semaphores_are_removed(tmp_path: Path, way: str) -> None:
    assert files_left(tmp_path, "memory", way, "script") == []


@pytest.mark.parametrize("mode", ["warm", "wrapper", "functions"])
@pytest.mark.parametrize("way", ["restart", "agent"])
def test_the_same_of_ranks_that_are_started_otherwise(tmp_path: Path, way: str, mode: str) -> None:
    assert files_left(tmp_path, "memory", way, mode) == []
