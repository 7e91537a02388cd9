"""elastic.torch.Store with real process groups, and with the calls that torch's code makes."""

from __future__ import annotations

import datetime
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

dist = pytest.importorskip("torch.distributed", reason="needs torch")

import elastic  # noqa: E402
import elastic.torch  # noqa: E402

TIMEOUT_S = 110.0  # each worker imports torch

WORKER = """
import datetime, os, sys
import torch
import torch.distributed as dist
import elastic, elastic.torch

port, rank, world_size = map(int, sys.argv[1:])
dist.init_process_group(
    "gloo",
    store=elastic.torch.Store(elastic.StoreClient("127.0.0.1", port)),
    rank=rank,
    world_size=world_size,
    timeout=datetime.timedelta(seconds=240),
)
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
assert total.item() == world_size * (world_size + 1) / 2, total
evens = dist.new_group(list(range(0, world_size, 2)))
if rank % 2 == 0:
    part = torch.tensor([float(rank)])
    dist.all_reduce(part, group=evens)
    assert part.item() == sum(range(0, world_size, 2)), part
names = [None] * world_size
dist.all_gather_object(names, f"rank {rank}")
assert names == [f"rank {other}" for other in range(world_size)]
dist.barrier()
dist.destroy_process_group()
print("done", flush=True)
os._exit(0)  # a thread of gloo may still need the interpreter
"""


@pytest.fixture
def port() -> Iterator[int]:
    with elastic.StoreServer() as server:
        yield server.port


@pytest.fixture
def store(port: int) -> Iterator[elastic.torch.Store]:
    store = elastic.torch.Store(elastic.StoreClient("127.0.0.1", port, timeout=30))
    yield store
    store.close()


@pytest.mark.parametrize("world_size", [4])
def test_gloo_groups_form_over_the_store(port: int, world_size: int) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(port), str(rank), str(world_size)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [worker.communicate(timeout=TIMEOUT_S)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0] * world_size
    assert outputs == ["done\n"] * world_size


def test_prefix_store_supports_every_call_and_keeps_the_store_alive(port: int) -> None:
    def make() -> dist.Store:
        return dist.PrefixStore("p", elastic.torch.Store(elastic.StoreClient("127.0.0.1", port)))

    prefixed = make()
    gc.collect()
    prefixed.set("k", "v")
    assert prefixed.get("k") == b"v"
    assert prefixed.clone().get("k") == b"v"
    assert prefixed.add("n", 2) == 2
    assert prefixed.check(["k", "n"])
    prefixed.wait(["k"])
    prefixed.wait(["k"], datetime.timedelta(seconds=10))
    assert prefixed.compare_set("k", "v", "w") == b"w"
    prefixed.append("k", "!")
    prefixed.multi_set(["a", "b"], ["1", "2"])
    assert prefixed.multi_get(["b", "a", "k"]) == [b"2", b"1", b"w!"]
    assert prefixed.delete_key("a")
    assert prefixed.num_keys() == 3
    assert prefixed.has_extended_api()
    bare = elastic.StoreClient("127.0.0.1", port)
    assert sorted(bare.list_keys()) == ["p/b", "p/k", "p/n"]


def test_calls_that_torch_makes_on_the_store_itself(store: elastic.torch.Store) -> None:
    store.queue_push("q", "1")
    assert store.queue_len("q") == 1
    assert store.queue_pop("q") == b"1"
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("q", block=False)
    store.barrier("b", 1)
    store.set("k", "v")
    assert sorted(store.list_keys()) == ["b", "k"]


def test_timeout_is_set_and_enforced_like_torchs(store: elastic.torch.Store) -> None:
    assert store.timeout == datetime.timedelta(seconds=30)
    prefixed = dist.PrefixStore("p", store)
    prefixed.set_timeout(datetime.timedelta(seconds=0.05))
    assert store.timeout == datetime.timedelta(seconds=0.05)
    assert store.clone().timeout == store.timeout
    with pytest.raises(dist.DistStoreError, match=r"'p/missing'.*timeout after 50 ms"):
        prefixed.get("missing")
    with pytest.raises(elastic.StoreTimeout):
        store.wait(["missing"])
    # torch's store barrier retries its wait after a RuntimeError.
    with pytest.raises(RuntimeError):
        store.wait(["missing"], datetime.timedelta(seconds=0.01))


def test_lost_server_raises_torchs_exception_class() -> None:
    with elastic.StoreServer() as server:
        store = elastic.torch.Store(elastic.StoreClient("127.0.0.1", server.port))
    with pytest.raises(dist.DistNetworkError):
        store.add("n", 1)
    with pytest.raises(ConnectionError):
        store.add("n", 1)
    store.close()
