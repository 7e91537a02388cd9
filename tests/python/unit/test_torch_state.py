"""What ranks send to each other at a change of the members, in a group of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from elastic.torch import _state  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def group() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sent(state: Any) -> Any:
    return _state.broadcast(state, 0, True, CPU, CPU, lambda: None)


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
        _state.State(
            model,
            torch.optim.SGD(model.parameters(), lr=1),
            {"mean": torch.optim.swa_utils.AveragedModel(model)},
        )
        for model in models
    ]
    states[1].load(sent(states[0].taken(True)))
    own, received = (state.taken(True) for state in states)
    for part in ("model", "also"):
        torch.testing.assert_close(received[part], own[part], rtol=0, atol=0)


class Cached(torch.nn.Module):
    def __init__(self, cached: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("cache", torch.ones(cached), persistent=False)


def states_of(*models: torch.nn.Module) -> list[_state.State]:
    return [_state.State(one, torch.optim.SGD(one.parameters(), lr=1), {}) for one in models]


@pytest.mark.usefixtures("group")
def test_a_rank_that_joins_gets_frozen_layers_and_buffers_that_have_grown() -> None:
    models = [Cached(16), Cached(4)]
    models[0].layer.bias.requires_grad_(False)
    states = states_of(*models)
    assert states[0].layout() == states[1].layout()
    states[1].load(sent(states[0].taken(True)))
    assert [one.requires_grad for one in models[1].parameters()] == [True, False]
    torch.testing.assert_close(models[1].cache, models[0].cache)
    assert "cache" not in models[1].state_dict()


def test_models_and_groups_that_cannot_take_each_others_state_differ() -> None:
    models = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 3), torch.nn.Linear(2, 2).double()]
    layouts = [state.layout() for state in states_of(*models)]
    grouped = torch.optim.SGD([{"params": [one]} for one in models[0].parameters()], lr=1)
    layouts.append(_state.State(models[0], grouped, {}).layout())
    assert len(set(layouts)) == 4
    assert states_of(models[0])[0].layout() == layouts[0]


def positions(*ranks: tuple[bool, int, int, bool, int]) -> list[_state.Position]:
    return [_state.Position(*one) for one in ranks]


START = (False, 0, 0, True, 0)


@pytest.mark.parametrize(
    ("ranks", "source", "receivers", "is_whole"),
    [
        (positions((True, 10, 1, True, 7), (True, 10, 1, True, 7)), 0, [], False),
        (positions((True, 10, 1, True, 7), (True, 10, 1, True, 8)), 0, [1], False),
        (positions((True, 9, 1, True, 7), *[(True, 10, 0, True, 7)] * 2), 1, [0], True),
        (positions((True, 10, 1, True, 7), (True, 10, 1, True, 8), START), 0, [1, 2], True),
        (positions((True, 10, 0, False, 7), (True, 10, 0, True, 7)), 1, [0], True),
        (positions((True, 10, 0, True, 7), (True, 10, 1, False, 7)), 1, [0], True),
        (positions((True, 10, 0, False, 7), (True, 10, 0, False, 7)), 0, [1], True),
        (positions(START, START), 0, [], False),
    ],
)  # fmt: skip
def test_a_rank_of_those_that_are_furthest_sends_what_others_lack(
    ranks: list[_state.Position], source: int, receivers: list[int], is_whole: bool
) -> None:
    found = _state.transfer_between(ranks, shares_start=False)
    assert found == _state.Transfer(source, frozenset(receivers), is_whole)


def test_before_the_first_step_all_receive_the_state_of_one_if_they_share_the_start() -> None:
    found = _state.transfer_between(positions(START, START, START), shares_start=True)
    assert found == _state.Transfer(0, frozenset({1, 2}), True)


class Values:
    """Something with a state of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Training:
    def __init__(self, value: Any) -> None:
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=torch.tensor(1.0))
        self.other = torch.optim.Adam(self.model.parameters())
        self.schedulers = {
            "steps": torch.optim.lr_scheduler.StepLR(self.optimizer, 1),
            "cycle": torch.optim.lr_scheduler.OneCycleLR(self.other, 0.1, total_steps=9),
        }
        self.scaler = torch.amp.GradScaler("cpu")
        also = {"other": self.other, "scaler": self.scaler, "values": Values(value)}
        self.state = _state.State(self.model, self.optimizer, {**also, **self.schedulers})


LARGE = torch.arange(40_003, dtype=torch.float32)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("value", [1, {"b": (1, 2.5), "a": "x"}, torch.ones(3), LARGE, LARGE[1:]])
def test_ranks_with_other_extras_receive_them_and_keep_their_updates(value: Any) -> None:
    own, other = Training(value), Training(value)
    assert own.state.digest() == other.state.digest()
    seen = {own.state.digest()}
    for scheduler in own.schedulers.values():
        scheduler.optimizer.step()
        scheduler.step()
        seen.add(own.state.digest())
    own.scaler.scale(torch.ones(1))
    own.scaler.update(2.0)
    seen.add(own.state.digest())
    assert len(seen) == 4
    weights = other.model.weight.detach().clone()
    other.state.load(sent(own.state.taken(False)))
    assert own.state.digest() == other.state.digest()
    assert other.optimizer.param_groups[0]["lr"] == own.optimizer.param_groups[0]["lr"]
    assert torch.equal(other.model.weight, weights)
    assert not torch.equal(own.model.weight, other.model.weight)


@pytest.mark.parametrize("index", [0, 5000, 40_002])
def test_a_digest_covers_each_value_of_a_large_tensor(index: int) -> None:
    changed = LARGE.clone()
    changed[index] += 0.125
    moved = LARGE.roll(1)
    digests = [Training(value).state.digest() for value in (LARGE, changed, moved)]
    assert len(set(digests)) == 3


def test_a_digest_does_not_depend_on_the_order_of_keys_and_the_identity_of_objects() -> None:
    text = "a longer text"
    values = [{"a": text, "b": text}, {"b": " ".join(["a", "longer", "text"]), "a": text}]
    assert len({Training(value).state.digest() for value in values}) == 1
