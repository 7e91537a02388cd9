"""A training whose workers, guardians, agents and nodes are killed ends like an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kills import check_losses

pytestmark = [pytest.mark.timeout(400), pytest.mark.alone]


@pytest.mark.parametrize(("kind", "kills", "seed"), [("digits", 4, 1), ("fsdp", 2, 2)])
def test_losses_after_kills_are_those_of_an_undisturbed_training(
    kind: str, kills: int, seed: int, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    check_losses(kind, kills=kills, seed=seed, folder=tmp_path)
