"""elastic.torch.Store with real process groups, and with the calls that torch's code makes."""

from __future__ import annotations

import datetime
import gc
import sys
from collections.abc import Iterator

import elastic
import elastic.torch
import pytest
import torch.distributed as dist

from support.launching import run_program

# Ranks as processes of one interpreter, which imports torch once.
RANKS = """
import datetime, os, sys
import torch
import torch.distributed as dist
import elastic, elastic.torch

port, world_size = map(int, sys.argv[1:])

def run(rank):
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

for rank in range(world_size):
    if os.fork() == 0:
        code = 1
        try:
            run(rank)
            code = 0
        finally:
            os._exit(code)  # a thread of gloo may still need the interpreter
for rank in range(world_size):
    assert os.wait()[1] == 0
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


def test_gloo_groups_form_over_the_store(port: int) -> None:
    ranks = run_program([sys.executable, "-c", RANKS, str(port), "4"])
    assert (ranks.returncode, ranks.stdout) == (0, "done\n" * 4), ranks.stderr


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
