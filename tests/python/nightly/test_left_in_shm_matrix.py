"""The table of what stays in /dev/shm and TMPDIR, for each kind of use and each way of ending."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.shared_memory import WAYS, files_left


@pytest.mark.parametrize("mode", ["script", "warm", "functions", "processes"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["memory", "manager", "joblib", "loaders"])
def test_nothing_is_left(tmp_path: Path, kind: str, way: str, mode: str) -> None:
    if mode == "processes" and (way not in ("0", "raise") or kind in ("joblib", "loaders")):
        pytest.skip("without an agent their children and files remain, as with torch's function")
    if kind == "joblib":
        pytest.importorskip("joblib")
    if kind in ("joblib", "loaders"):
        pytest.importorskip("torch")
    left = files_left(tmp_path, kind, way, mode)
    # The server of a multiprocessing manager removes the folder of its socket only when its rank
    # ends in order: a plain Python program leaves it, too.
    if kind == "manager" and way != "0":
        left = [name for name in left if not name.startswith("pymp-")]
    assert left == []
