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

from support.launching import clean_environment, run_program
from support.paths import STUBS


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
    environ = clean_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="4")
    program = [sys.executable, str(STUBS / "stub_gloo_ranks.py"), "elastic"]
    run_program(program, environ=environ, check=True)


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
