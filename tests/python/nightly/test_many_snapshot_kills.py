"""Fifty kills of a training with snapshots, and its losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kills import check_losses

pytest.importorskip("torch")
pytest.importorskip("sklearn")

pytestmark = [pytest.mark.timeout(3600), pytest.mark.alone]


@pytest.mark.parametrize("kind", ["digits", "fsdp"])
def test_losses_after_fifty_kills(kind: str, tmp_path: Path) -> None:
    check_losses(kind, kills=50, seed=50, folder=tmp_path)
