"""What ranks send to each other at a change of the members, in a group of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from elastic import _torch_state, _torch_transfer  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def group() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sent(state: Any) -> Any:
    return _torch_transfer.broadcast(state, 0, True, CPU, CPU, lambda: None)


class Scaled(torch.nn.Linear):
    """Version 1 of it had weights of half the size."""

    _version = 2

    def _load_from_state_dict(
        self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any
    ) -> None:
        if metadata.get("version", 1) < 2:
            state[prefix + "weight"] = state[prefix + "weight"] * 2
        super()._load_from_state_dict(state, prefix, metadata, *rest)


@pytest.mark.usefixtures("group")
def test_a_module_that_knows_older_versions_of_its_state_gets_the_version() -> None:
    models = [torch.nn.Sequential(Scaled(2, 2)) for _ in range(2)]
    states = [
        _torch_state.State(
            model,
            torch.optim.SGD(model.parameters(), lr=1),
            {"mean": torch.optim.swa_utils.AveragedModel(model)},
        )
        for model in models
    ]
    states[1].load_whole(sent(states[0].whole()))
    own, received = (state.whole() for state in states)
    for part in ("model", "also"):
        torch.testing.assert_close(received[part], own[part], rtol=0, atol=0)
