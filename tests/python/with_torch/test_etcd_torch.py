"""The rendezvous, the store and the server of etcd by torch's names, with a real etcd."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("etcd3gw")
if shutil.which("etcd") is None:
    pytest.skip("etcd is not installed (Debian: etcd-server)", allow_module_level=True)

import torch.distributed as dist
from elastic.agent.server import LocalElasticAgent, WorkerSpec
from elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from elastic.rendezvous.etcd_rendezvous import (
    EtcdRendezvous,
    EtcdRendezvousHandler,
    create_rdzv_handler,
)
from elastic.rendezvous.etcd_server import EtcdServer, stop_etcd
from elastic.rendezvous.etcd_store import EtcdStore

from support.launching import DEADLINE_S
from support.waiting import together


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    made = EtcdServer(str(tmp_path_factory.mktemp("etcd")))
    made.start(DEADLINE_S, stderr=subprocess.DEVNULL)
    yield made
    made.stop()


def store(server: EtcdServer, name: str, seconds: float = DEADLINE_S) -> EtcdStore:
    return EtcdStore(server.get_client(), f"/test/{name}", timedelta(seconds=seconds))


def test_a_store_has_the_methods_of_a_store(server: EtcdServer) -> None:
    mine, other = store(server, "methods"), store(server, "methods")
    mine.set("a", b"\0\xff")
    assert other.get("a") == b"\0\xff"
    assert [mine.add("n", 2), other.add("n", -5)] == [2, -3]
    assert (mine.check(["a", "n"]), mine.check(["a", "z"])) == (True, False)
    assert mine.compare_set("c", "", "1") == b"1"
    assert other.compare_set("c", "x", "2") == b"1"
    assert other.compare_set("c", "1", "2") == b"2"
    assert mine.compare_set("missing", "x", "2") == b"x"
    assert (mine.delete_key("a"), mine.delete_key("a")) == (True, False)
    many = [f"k{number}" for number in range(250)]
    for key in many:
        mine.set(key, key)
    other.wait(many)
    with pytest.raises(LookupError, match=r"no key 'z' below /test/methods/ after 0\.01 s"):
        mine.wait(["k0", "z"], timedelta(milliseconds=10))


def test_a_store_waits_for_a_key_and_serves_torchs_stores(server: EtcdServer) -> None:
    waiting, setting = store(server, "waits"), store(server, "waits")
    with ThreadPoolExecutor() as pool:
        got = pool.submit(dist.PrefixStore("p", waiting).get, "late")
        setting.set("p/late", "here")
        assert got.result(DEADLINE_S) == b"here"
    assert isinstance(waiting, dist.Store)
    waiting.set_timeout(timedelta(seconds=7))
    assert waiting.timeout == timedelta(seconds=7)


def test_a_wait_for_a_key_begins_at_the_revision_of_its_own_read() -> None:
    class Client:
        """Another thread reads between the first request and its answer."""

        def __init__(self) -> None:
            self.watched: list[int] = []
            self.answers = 0

        def transaction(self, _: Any) -> dict[str, Any]:
            self.answers += 1
            if self.answers == 1:
                store.check(["other"])
                revision, value = 7, {}
            elif self.watched:
                revision, value = 9, {"kvs": [{"value": "", "mod_revision": "9"}]}
            else:
                revision, value = 8, {}
            return {"header": {"revision": revision}, "responses": [{"response_range": value}]}

        def watch_once(self, key: str, limit: float, start_revision: int) -> None:
            self.watched.append(start_revision)

    client: Any = Client()
    store = EtcdStore(client, "/job")
    assert store.get("key") == b""
    assert client.watched == [8]


def barrier(server: EtcdServer, run_id: str) -> EtcdRendezvous:
    return EtcdRendezvous(server.get_client(), "/prefix/", run_id, 2, 2, DEADLINE_S, 1)


def test_nodes_meet_by_torchs_classes(server: EtcdServer) -> None:
    params = RendezvousParameters(
        "etcd", server.get_endpoint(), "job", 2, 2, "127.0.0.1", etcd_prefix="/prefix"
    )
    first = create_rdzv_handler(params)
    second = EtcdRendezvousHandler(barrier(server, "job"), "127.0.0.1")
    infos = together(first.next_rendezvous, second.next_rendezvous)
    assert sorted(info.rank for info in infos) == [0, 1]
    assert (first.get_backend(), second.get_run_id()) == ("etcd", "job")
    infos[0].store.set("key", b"value")
    assert bytes(infos[1].store.get("key")) == b"value"

    def end() -> bool:
        with pytest.raises(RendezvousClosedError):
            second.next_rendezvous()
        return second.shutdown()

    # One of them runs the coordinator, which ends last.
    assert together(first.shutdown, end) == [True, True]


def test_a_rendezvous_without_a_handler(server: EtcdServer) -> None:
    nodes = [barrier(server, "barrier") for _ in range(2)]
    joined = together(*(node.rendezvous_barrier for node in nodes))
    assert sorted(rank for _, rank, _ in joined) == [0, 1]
    assert [(number, size) for number, _, size in joined] == [(joined[0][0], 2)] * 2
    nodes[0].store_extra_data(1, "k", "v")
    assert nodes[1].load_extra_data(1, "k") == "v"
    nodes[0].setup_kv_store(1).set("a", "b")
    assert nodes[1].setup_kv_store(1).get("a") == b"b"
    nodes[0].set_closed()


def test_an_agent_runs_with_the_handler(server: EtcdServer) -> None:
    handler = create_rdzv_handler(RendezvousParameters("etcd", server.get_endpoint(), "a", 1, 1))
    spec = WorkerSpec("trainer", 1, handler, entrypoint="/bin/true")
    assert LocalElasticAgent(spec).run().exit_code == 0


def test_a_server_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", "/bin/false")
    failing = EtcdServer(str(tmp_path / "data"))
    with pytest.raises(RuntimeError, match="etcd exited with 1"):
        failing.start(DEADLINE_S, num_retries=2)
    assert not (tmp_path / "data").exists()
    stop_etcd(None)
