"""elastic.torch.membership and its sampler, without a process group."""

from __future__ import annotations

import copy
import pickle
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import elastic.torch  # noqa: E402
from elastic import worker  # noqa: E402
from elastic.torch import Change, _batches, _groups, _state, _training  # noqa: E402
from elastic.worker._membership import current_round  # noqa: E402


class InPlace:
    supported = True
    over = True

    def is_over(self) -> bool:
        return self.over


class FullyShardedDataParallel(torch.nn.Linear):
    pass


class ZeroRedundancyOptimizer(torch.optim.SGD):
    pass


class OwnOptimizer(ZeroRedundancyOptimizer):
    pass


def test_what_cannot_continue_in_place_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "membership", InPlace)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    elastic.torch.membership(model, optimizer)
    sharded = FullyShardedDataParallel(1, 1)
    with pytest.raises(ValueError, match="model is sharded"):
        elastic.torch.membership(sharded, torch.optim.SGD(sharded.parameters(), lr=1))
    for one in (ZeroRedundancyOptimizer, OwnOptimizer):
        other = one(model.parameters(), lr=1)
        with pytest.raises(ValueError, match="a part of the state on each rank"):
            elastic.torch.membership(model, other)
        with pytest.raises(ValueError, match="a part of the state on each rank"):
            elastic.torch.membership(model, optimizer, also={"other": other})
    with pytest.raises(ValueError, match="'mpi': members change in place with gloo and with nccl"):
        elastic.torch.membership(model, optimizer, backend="mpi")
    with pytest.raises(ValueError, match="the model is on cpu: move it to this process's GPU"):
        elastic.torch.membership(model, optimizer, backend="nccl")


def test_a_trial_round_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make_step, ends = _groups._step, []
    monkeypatch.setattr(_groups, "_step", lambda: ends.append(make_step()))
    numbers = torch.random.get_rng_state()
    with torch.no_grad():
        _groups.try_round()
    assert ends == [None], "its step has succeeded"
    assert not torch.distributed.is_initialized()
    assert torch.equal(torch.random.get_rng_state(), numbers)
    monkeypatch.setattr(_groups, "_step", lambda: 1 / 0)
    _groups.try_round()  # no error: the round itself shows what does not work
    assert not torch.distributed.is_initialized()


def test_without_a_launcher_one_process_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    model = torch.nn.Linear(1, 1)
    job = elastic.torch.membership(model, torch.optim.SGD(model.parameters(), lr=1), start=2)
    with pytest.raises(RuntimeError, match="use the model within"):
        print(job.model)
    with job:
        assert job.model is model and (job.rank, job.world_size) == (0, 1)
        found = []
        for step in job.steps(5):
            found.append(int(step))
            with step:
                if step == 3:
                    continue
        assert found == [2, 3, 4]
        assert list(map(int, job.steps(7))) == [5, 6]
        with pytest.raises(RuntimeError, match="gloo"):
            for step in job.steps(8):
                with step:
                    raise RuntimeError("gloo: connection closed")
    assert job.step == 7 and job.last_change is None


def test_no_step_follows_one_at_which_the_training_was_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(worker, "should_stop", lambda step: step == 3)
    model = torch.nn.Linear(1, 1)
    with elastic.torch.membership(model, torch.optim.SGD(model.parameters(), lr=1)) as job:
        found = [int(step) for end in (2, 4, 6) for step in job.steps(end)]
    assert found == [0, 1, 2] and job.step == 3


def test_an_update_after_the_body_belongs_to_the_step_that_is_complete() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    job = elastic.torch.membership(model, optimizer)
    with job:
        optimizer.step()
        assert job._updates == 0, "no step has begun"
        for step in job.steps(2):
            with step:
                optimizer.step()
                assert job._updates == 1
            optimizer.step()
            assert job._updates == 0
        for _ in job.steps(3):  # all of the loop is the body
            optimizer.step()
            assert job._updates == 1


def test_an_update_after_the_body_needs_no_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    job = elastic.torch.membership(model, optimizer)
    seen: list[str] = []
    monkeypatch.setattr(job, "confirm", lambda: seen.append("confirm"))
    with job:
        for step in job.steps(1):
            with step:
                pass
            assert seen == ["confirm"]
            optimizer.step()  # the round may be over by now: an error would not be discarded
            assert seen == ["confirm"]


@pytest.mark.parametrize(("ended", "waits"), [(0, True), (4, False), (6, False)])
def test_a_rank_does_not_wait_where_another_knows_that_all_have_ended(
    monkeypatch: pytest.MonkeyPatch, ended: int, waits: bool
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    model = torch.nn.Linear(1, 1)
    job = elastic.torch.membership(model, torch.optim.SGD(model.parameters(), lr=1), start=4)
    other = _state.Position(True, 4, 0, True, 0, ended)

    def gathered(own: _state.Position, *_: object) -> list[_state.Position]:
        return [own, other._replace(training=own.training, layout=own.layout)]

    monkeypatch.setattr(_state, "gathered", gathered)
    monkeypatch.setattr(job, "_transfer", lambda transfer: None)
    waited: list[str] = []
    monkeypatch.setattr(torch.distributed, "barrier", lambda: waited.append("barrier"))
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        with job:
            assert list(job.steps(3)) == [] and not waited, "step 4 is after it"
            for _ in range(2):
                assert list(job.steps(4)) == []
                assert waited == ["barrier"][: int(waits)]
    finally:
        torch.distributed.destroy_process_group()


def job_over_nccl(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module) -> Any:
    """One whose changes form nothing."""
    job = elastic.torch.membership(model, torch.optim.SGD(model.parameters(), lr=1))
    monkeypatch.setattr(job, "_uses_nccl", True)
    monkeypatch.setattr(job, "_next_round", lambda failed: None)
    monkeypatch.setattr(job, "_form", lambda times: None)
    return job


def test_a_change_between_two_steps_keeps_the_buffers_of_the_complete_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.BatchNorm1d(1)
    job = job_over_nccl(monkeypatch, model)
    means = []
    for is_complete, updates in ((False, 0), (True, 0), (True, 1)):
        job._begin()
        model.running_mean.fill_(5)
        job._updates = updates
        if is_complete:
            job._complete(0)
        job._change(0.0)
        means.append(float(model.running_mean))
    assert means == [0, 5, 5]


def test_a_change_before_the_next_step_keeps_the_buffers_that_the_last_one_has_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.BatchNorm1d(1)
    job = job_over_nccl(monkeypatch, model)
    monkeypatch.setattr(job, "_form", lambda times: model.running_mean.fill_(7))
    job._begin()
    model.running_mean.fill_(5)
    job._change(0.0)
    monkeypatch.setattr(job, "_form", lambda times: None)
    job._change(0.0)
    assert float(model.running_mean) == 7


def test_gradients_are_confirmed_before_the_update_and_in_its_closure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    job = elastic.torch.membership(model, optimizer)
    seen: list[str] = []
    monkeypatch.setattr(job, "confirm", lambda: seen.append("confirm"))
    hook = optimizer.register_step_pre_hook(job._begin_update)

    def closure() -> torch.Tensor:
        seen.append("closure")
        assert not job._is_updating, "no parameter has been updated"
        return torch.zeros(1)

    job._begin()
    optimizer.step()
    assert seen == ["confirm"] and job._is_updating
    for step in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
        seen.clear()
        job._begin()
        assert float(step()) == 0
        assert seen == ["confirm", "closure", "confirm"]
    hook.remove()


@pytest.mark.parametrize("is_over", [True, False])
def test_a_body_without_an_update_is_complete_when_its_results_are(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr(worker, "membership", InPlace)
    monkeypatch.setattr(InPlace, "over", is_over)
    model = torch.nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1) for _ in range(2)]
    job = elastic.torch.membership(
        model, optimizers[0], also={"second": optimizers[1]}, notice_timeout=0
    )
    seen: list[str] = []

    def confirm() -> None:
        seen.append("confirm")
        raise torch.distributed.DistBackendError("NCCL's operations were aborted")

    monkeypatch.setattr(job, "confirm", confirm)
    monkeypatch.setattr(job, "_change", lambda failed: seen.append("change"))
    for updates in (0, 1):
        seen.clear()
        with ExitStack() as stack:
            if not is_over:
                stack.enter_context(pytest.raises(torch.distributed.DistBackendError))
            with _training.Step(0, job):
                for _ in range(updates):
                    job._end_update()
        assert seen == ["confirm", "change"][: 1 + is_over]
        assert job.step == 0
    with _training.Step(0, job):
        for _ in optimizers:
            job._end_update()
    assert job.step == 1


def test_an_interrupted_step_is_released_before_the_next_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "membership", InPlace)
    model = torch.nn.Linear(1, 1)
    job = elastic.torch.membership(model, torch.optim.SGD(model.parameters(), lr=1))
    losses: list[weakref.ref[torch.Tensor]] = []
    seen: list[bool] = []
    monkeypatch.setattr(
        job, "_change", lambda failed: seen.extend(one() is not None for one in losses)
    )

    def train() -> None:
        loss = model(torch.ones(1))
        losses.append(weakref.ref(loss))
        raise RuntimeError("gloo: connection closed")

    def train_again() -> None:
        try:
            train()
        except RuntimeError:
            train()

    with _training.Step(0, job):
        train_again()
    assert seen == [False, False]


def test_a_change_ends_what_a_scaler_knows_of_the_interrupted_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    job = elastic.torch.membership(model, optimizer, also={"scaler": scaler})
    monkeypatch.setattr(job, "_next_round", lambda failed: None)
    monkeypatch.setattr(job, "_form", lambda times: None)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1))).sum().backward()
        scaler.unscale_(optimizer)  # raises if the gradients of an earlier step were unscaled
        assert [float(one.grad) for one in model.parameters()] == [1, 1]
        job._change(0.0)


def test_batches_use_each_sample_once_for_any_number_of_ranks() -> None:
    batches = elastic.torch.GlobalBatches(25, 6, seed=1)
    assert len(batches) == 4
    used = []
    for step, world_size in enumerate((3, 2, 1, 6)):
        parts = []
        for rank in range(world_size):
            batches.rank, batches.world_size = rank, world_size
            parts.append(batches[step])
        assert {len(part) for part in parts} == {6 // world_size}
        used += [int(one) for one in torch.cat(parts)]
    assert len(set(used)) == 24
    assert batches.epoch(3) == 0 and batches.epoch(4) == 1
    assert not torch.equal(batches[0], batches[4])


@pytest.mark.parametrize("size", [0, 4])
def test_batches_need_a_valid_size(size: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 3"):
        elastic.torch.GlobalBatches(3, size)


def test_what_a_script_receives_can_be_saved_copied_and_sent(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)  # not picklable
    batches = elastic.torch.GlobalBatches(8, 2)
    with elastic.torch.membership(model, optimizer, batches, also={"schedule": schedule}) as job:
        for step in job.steps(3):
            with step:
                batches[step]
    received = [
        (step, 2),
        (current_round(), current_round()),
        (Change(1, "", 2, 1, (0,), (1,), 0, 5, 0.0, 0.0, 0.0, 0.0),) * 2,
    ]
    for value, expected in received:
        for copied in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            assert (type(copied), copied) == (type(expected), expected)
    assert torch.equal(copy.deepcopy(batches)[3], batches[3])
    torch.save({"step": step, "model": model.state_dict()}, tmp_path / "checkpoint")
    for is_strict in (True, False):
        loaded = torch.load(tmp_path / "checkpoint", weights_only=is_strict)["step"]
        assert (type(loaded), loaded) == (int, 2)


def test_a_callback_that_is_added_within_the_context_is_called_at_once() -> None:
    model = torch.nn.Linear(1, 1)
    calls: list[object] = []
    job = elastic.torch.membership(model, torch.optim.SGD(model.parameters(), lr=1))
    with job:
        job.on_change(calls.append)
        assert calls == [None]


def test_more_ranks_than_samples_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    batches = elastic.torch.GlobalBatches(8, 4)
    _batches.divide(batches, 0, 2)
    assert not caplog.records
    _batches.divide(batches, 0, 3)
    assert "the batch of 4 samples is not a multiple of the 3 ranks" in caplog.text
    with pytest.raises(ValueError, match="has 4 samples, and the job has 5 ranks"):
        _batches.divide(batches, 0, 5)
