"""Unmodified PyTorch clients against our store server."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from elastic import StoreServer

from support.launching import DEADLINE_S, clean_environment, run_program
from support.paths import STUBS
from support.waiting import together


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(host="127.0.0.1", port=0) as server:
        yield server


@pytest.fixture
def connect(server: StoreServer) -> Callable[..., Any]:
    def connect(**arguments: Any) -> Any:
        arguments = {"is_master": False, "timeout": timedelta(seconds=30), **arguments}
        return dist.TCPStore("127.0.0.1", server.port, **arguments)

    return connect


def test_every_call_behaves_as_torch_documents(connect: Callable[..., Any]) -> None:
    store = connect()
    store.set("k", "v")
    assert store.get("k") == b"v"
    store.set("empty", "")
    assert store.get("empty") == b""
    assert store.add("count", 5) == 5
    assert store.add("count", -7) == -2
    assert store.get("count") == b"-2"
    assert store.check(["k", "count"]) and not store.check(["k", "nope"])
    assert store.compare_set("cas", "x", "new") == b"x"
    assert store.compare_set("cas", "", "one") == b"one"
    assert store.compare_set("cas", "one", "two") == b"two"
    store.append("log", "ab")
    store.append("log", "cd")
    assert store.get("log") == b"abcd"
    store.multi_set(["m1", "m2"], ["x", "yy"])
    assert store.multi_get(["m2", "m1"]) == [b"yy", b"x"]
    assert store.num_keys() == 7
    assert sorted(store.list_keys()) == ["cas", "count", "empty", "k", "log", "m1", "m2"]
    assert store.delete_key("m1") and not store.delete_key("m1")
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    assert store.queue_len("q") == 2
    assert store.queue_pop("q") == b"first"
    assert store.queue_pop("q", False) == b"second"
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("q", False)


def test_wait_times_out_on_the_client_and_the_store_stays_usable(
    connect: Callable[..., Any],
) -> None:
    store = connect()
    with pytest.raises(dist.DistStoreError, match="wait timeout after 50ms, keys: /never"):
        store.wait(["never"], timedelta(milliseconds=50))
    store.set("never", "now")
    store.wait(["never"])
    assert store.get("never") == b"now"


def test_blocked_get_is_woken_by_another_client(connect: Callable[..., Any]) -> None:
    with ThreadPoolExecutor() as pool:
        getter = pool.submit(connect().get, "later")
        connect().set("later", "here")
        assert getter.result(DEADLINE_S) == b"here"


def test_worker_count_and_nested_prefixes(server: StoreServer, connect: Callable[..., Any]) -> None:
    stores = [connect(world_size=3) for _ in range(3)]
    assert server.stats().keys == 1, "init/ is an ordinary key"
    nested = dist.PrefixStore("in/", dist.PrefixStore("out", stores[0]))
    nested.set("k", "v")
    assert stores[1].get("out/in//k") == b"v"
    assert stores[2].num_keys() == 2
    assert stores[2].clone().get("out/in//k") == b"v"


def test_store_barrier_releases_all_callers(connect: Callable[..., Any]) -> None:
    stores = [connect() for _ in range(4)]
    arguments = ("b", 4, timedelta(seconds=30))
    together(*(functools.partial(store.barrier, *arguments) for store in stores))


def test_gloo_process_group_of_unmodified_ranks(server: StoreServer) -> None:
    world_size = 4
    environ = clean_environment(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(server.port),
        WORLD_SIZE=str(world_size),
        TORCHELASTIC_USE_AGENT_STORE="True",
        OMP_NUM_THREADS="1",
    )
    program = [sys.executable, str(STUBS / "stub_gloo_ranks.py")]
    run_program(program, environ=environ, check=True)
    stats = server.stats()
    assert stats.connections_total == world_size
    assert stats.connections_rejected == 0
    # init/, a blob for each rank, and a blob for each rank of the smaller group.
    assert stats.keys == 1 + world_size + world_size // 2
