"""elastic.torch.Snapshots: what it holds, and that killed trainings end like undisturbed ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic.torch import Snapshots, _snapshots
from elastic.worker import snapshot

from support.launching import launch


def bytes_of(source: Any, kind: int, size: int = -1) -> bytes:
    if size < 0:
        return bytes(source)
    found = bytearray(size)
    if size > 0:
        source(memoryview(found))
    return bytes(found)


class Memory:
    """Stands for the launcher: holds what was saved as bytes."""

    def __init__(self) -> None:
        self.step = 0
        self.parts: list[bytes] = []
        self.is_own = True

    def save(self, step: int, parts: list[snapshot.Part], replicated: bool) -> bool:
        self.step, self.parts = step, [bytes_of(*one) for one in parts]
        return True

    def restore(self) -> tuple[int, list[memoryview], bool] | None:
        views = [memoryview(one) for one in self.parts]
        return (self.step, views, self.is_own) if views else None


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    found = Memory()
    monkeypatch.setattr(snapshot, "save_parts", found.save)
    monkeypatch.setattr(snapshot, "restore_parts", found.restore)
    yield found


class Holder:
    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def through(memory: Memory, state: Any) -> Any:
    Snapshots(one=Holder(state)).save(7)
    target = Holder()
    assert Snapshots(one=target).restore() == 7
    return target.state


def test_a_context_leaves_the_snapshots_and_raises_what_was_raised(memory: Memory) -> None:
    with pytest.raises(ZeroDivisionError), Snapshots(one=Holder({"a": 1})) as snapshots:
        snapshots.save(3)
        raise ZeroDivisionError
    target = Holder()
    with Snapshots(one=target) as again:
        assert again.restore() == 3
    assert target.state == {"a": 1}


def test_a_context_under_another_launcher_does_nothing() -> None:
    with Snapshots(one=Holder({"a": 1})) as snapshots:
        assert not snapshots.save(1)
        assert snapshots.restore() is None


DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    torch.float8_e4m3fn,
]


@pytest.fixture(params=["host", "device"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On the device: tensors of this host are copied as those of a GPU."""
    if request.param == "device":
        monkeypatch.setattr(_snapshots, "_is_on_host", lambda tensor: False)
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_any_type_and_shape(memory: Memory, dtype: torch.dtype, place: str) -> None:
    base = torch.arange(24).reshape(4, 6).to(dtype)
    for tensor in (base, base.t(), base[1:3, ::2], base[0, 0], base[:0], base.expand(2, 4, 6)):
        found = through(memory, {"one": tensor})["one"]
        assert found.dtype == dtype and found.shape == tensor.shape
        wide = torch.complex64 if dtype.is_complex else torch.float32
        assert torch.equal(found.to(wide), tensor.to(wide))


def test_a_tensor_that_occurs_twice_is_held_once(memory: Memory) -> None:
    tensor = torch.rand(1000)
    found = through(memory, {"a": tensor, "b": [tensor], "view": tensor.view(10, 100)})
    assert found["a"] is found["b"][0]
    assert torch.equal(found["view"], tensor.view(10, 100))
    assert len(memory.parts) == 4  # the structure, two tensors, and torch's generator


def test_what_is_loaded_is_not_the_memory_of_the_snapshot(memory: Memory) -> None:
    found = through(memory, {"one": torch.zeros(3)})["one"]
    found += 1
    assert torch.equal(through(memory, {"one": found})["one"], torch.ones(3))


def test_views_with_a_lazy_sign_or_conjugation(memory: Memory, place: str) -> None:
    complex_one = torch.tensor([1 + 2j])
    for tensor in (complex_one.conj(), complex_one.conj().imag):
        assert torch.equal(through(memory, {"one": tensor})["one"], tensor)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: torch.eye(2).to_sparse(), "a sparse tensor"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            "a quantised tensor",
        ),
        (lambda: torch.ones(2, device="meta"), "a tensor on the meta device"),
    ],
)
def test_what_cannot_be_held_is_refused(
    memory: Memory, make: Callable[[], torch.Tensor], name: str
) -> None:
    with pytest.raises(TypeError, match=rf"cannot hold {name} \(shape \(2"):
        Snapshots(one=Holder({"one": make()})).save(1)


def test_what_has_no_state_is_refused() -> None:
    with pytest.raises(TypeError, match=r"scheduler is a NoneType, which has no state_dict"):
        Snapshots(scheduler=None)


def test_the_names_of_another_round_are_compared(memory: Memory) -> None:
    Snapshots(model=torch.nn.Linear(1, 1)).save(1)
    with pytest.raises(ValueError, match="differ in model, network"):
        Snapshots(network=torch.nn.Linear(1, 1)).restore()


def test_generators_continue(memory: Memory) -> None:
    numpy = pytest.importorskip("numpy")
    own = torch.Generator().manual_seed(3)

    def draw() -> tuple[float, ...]:
        drawn = torch.rand(1), torch.rand(1, generator=own), random.random(), numpy.random.rand()
        return tuple(map(float, drawn))

    Snapshots(own=own).save(1)
    first = draw()
    assert draw() != first
    Snapshots(own=own).restore()
    assert draw() == first


# Those of all ranks would be equal otherwise. One that is passed is as equal as the other objects.
def test_generators_stay_as_the_script_has_seeded_them_with_the_state_of_another_rank(
    memory: Memory,
) -> None:
    numpy = pytest.importorskip("numpy")
    own = torch.Generator().manual_seed(3)

    def draw() -> tuple[float, ...]:
        return tuple(map(float, (torch.rand(1), random.random(), numpy.random.rand())))

    def seed() -> None:
        for one in (torch.manual_seed, random.seed, numpy.random.seed):
            one(7)

    Snapshots(own=own, replicated=True).save(1)
    at_the_save = float(torch.rand(1, generator=own))
    seed()
    seeded = draw()
    seed()
    memory.is_own = False
    assert Snapshots(own=own, replicated=True).restore() == 1
    assert draw() == seeded
    assert float(torch.rand(1, generator=own)) == at_the_save


def test_the_state_of_another_rank_is_only_for_replicated_objects(memory: Memory) -> None:
    Snapshots(one=Holder(1), replicated=True).save(1)
    memory.is_own = False
    with pytest.raises(ValueError, match="is of another rank, which saved it with replicated=True"):
        Snapshots(one=Holder()).restore()


def test_a_model_with_tied_weights_and_its_optimizer(memory: Memory) -> None:
    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        model.append(torch.nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.rand(8, 4)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model, optimizer = build()
    train(model, optimizer, 3)
    Snapshots(model=model, optimizer=optimizer).save(3)
    expected = train(model, optimizer, 5)
    other, other_optimizer = build()
    assert Snapshots(model=other, optimizer=other_optimizer).restore() == 3
    assert other[2].weight is other[0].weight
    assert train(other, other_optimizer, 5) == expected


def test_the_generators_of_all_gpus_are_held(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [torch.arange(16, dtype=torch.uint8), torch.arange(16, 32, dtype=torch.uint8)]
    found = {}
    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "get_rng_state_all": lambda: states,
        "set_rng_state": lambda state, device: found.update({device: state.tolist()}),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    through(memory, {"one": 1})
    assert found == {0: states[0].tolist(), 1: states[1].tolist()}


PINNED = """
import ctypes, os, sys
import torch
from elastic import worker
from elastic.torch import Snapshots, _snapshots
from elastic.worker import snapshot

registered, calls = {}, []

class Cudart:
    def cudaHostRegister(self, address, size, flags):
        calls.append("register")
        assert ctypes.string_at(address, 8) == b"snapshot" and address not in registered
        if not refuses:
            registered[address] = size
        return refuses

    def cudaHostUnregister(self, address):
        calls.append("unregister")
        assert ctypes.string_at(address, 8) == b"snapshot"  # it is mapped
        del registered[address]
        return 0

def files():
    maps = open("/proc/self/maps").read().splitlines()
    return {int(one.partition("-")[0], 16) for one in maps if "elastic-snapshot" in one}

_snapshots._is_on_host = lambda tensor: False
_snapshots._is_on_cuda = lambda tensor: True
torch.cuda.cudart = Cudart
refuses = int(sys.argv[1])
state = {"one": torch.ones(1000)}

class Holder:
    def state_dict(self):
        return state
    def load_state_dict(self, loaded):
        assert (loaded["one"] == 4).all()

snapshots = Snapshots(holder=Holder())
step = snapshots.restore()
if worker.round() == 0:
    for step, size in (1, 1000), (2, 1000), (3, 100_000), (4, 100_000):
        state["one"] = torch.full((size,), float(step))
        assert snapshots.save(step)
        if not refuses:
            assert set(registered) <= files(), (registered, files())
    found = ["register"] * 2 + (["unregister"] + ["register"]) * 2
    assert calls == ([one for one in found if one == "register"] if refuses else found), calls
    sys.exit(9)
assert step == 4
snapshots.save(5)
assert len(calls) == 1 and set(registered) < files()
"""


@pytest.mark.parametrize("refuses", ["0", "1"], ids=["registered", "refused"])
def test_files_are_registered_with_cuda_until_they_are_unmapped(
    tmp_path: Path, refuses: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PINNED)
    options = ("--nproc-per-node=1", "--max-restarts=1", "--restart-backoff=0")
    done = launch(*options, str(path), refuses)
    assert done.returncode == 0, done.stderr


ON_DEVICE = """
import os, sys
import torch
from elastic import worker
from elastic.torch import Snapshots, _snapshots

_snapshots._is_on_host = lambda tensor: False
copy, copied = _snapshots._copy_to, []

def fails(tensor, memory):
    copied.append(len(memory))
    if len(copied) == 2:
        raise RuntimeError("out of memory on the device")
    copy(tensor, memory)

model = torch.nn.Linear(300, 300)
with Snapshots(model=model) as snapshots:
    step = snapshots.restore()
    if worker.round() > 0:
        assert step == 2 and (model.weight == 2).all(), step
        sys.exit()
    for step in (1, 2):
        torch.nn.init.constant_(model.weight, step)
        assert snapshots.save(step)
    torch.nn.init.constant_(model.weight, 3)
    _snapshots._copy_to = fails
    snapshots.save(3)
"""


def test_a_copy_from_a_device_that_fails_leaves_the_snapshot_before(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(ON_DEVICE)
    done = launch("--nproc-per-node=1", "--max-restarts=1", "--restart-backoff=0", str(path))
    assert done.returncode == 0, done.stderr
    assert "RuntimeError: out of memory on the device" in done.stderr
    assert "continued at step 2 from memory" in done.stderr


TRAINING = """
import os, random, signal, sys
import torch
import torch.distributed as dist
from elastic import worker
from elastic.torch import Snapshots
from torch import nn

STEPS, KILLS, KIND = 60, int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank, count = dist.get_rank(), worker.round()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 8))
if KIND == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
else:
    model = nn.parallel.DistributedDataParallel(model)
torch.manual_seed(rank)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.7)
snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler)
step = snapshots.restore()
if step is None:
    assert count == 0, count
    step = 0
begun = step
while step < STEPS or count < KILLS:
    optimizer.zero_grad()
    loss = model(torch.rand(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    worker.progress(step)
    os.write(1, f"rank {rank} step {step} loss {loss.item().hex()}\\n".encode())
    snapshots.save(step)
    if step == begun + 3 and count < KILLS and rank == count % 2:
        signal.setitimer(signal.ITIMER_REAL, random.Random(count).uniform(0.001, 0.12))
dist.barrier()
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_after_kills_are_those_of_an_undisturbed_training(kind: str, tmp_path: Path) -> None:
    kills = 4
    path = tmp_path / "train.py"
    path.write_text(TRAINING)

    def losses(number: int) -> dict[tuple[str, int], str]:
        done = launch(
            *("--warm", "--nproc-per-node=2", f"--max-restarts={number}", "--restart-backoff=0"),
            *(str(path), str(number), kind),
        )
        assert done.returncode == 0, done.stderr
        found: dict[tuple[str, int], str] = {}
        for line in done.stdout.splitlines():
            words = line.split()
            if len(words) != 6 or words[2] != "step":
                continue
            at = (words[1], int(words[3]))
            assert found.setdefault(at, words[5]) == words[5], line  # also if a step is repeated
        if number:
            assert done.stderr.count("from memory") == number, done.stderr
        return found

    undisturbed, killed = losses(0), losses(kills)
    common = undisturbed.keys() & killed.keys()
    assert len(common) == 2 * 60
    assert {at: killed[at] for at in common} == {at: undisturbed[at] for at in common}
