"""Handlers in separate processes, over every kind of backend."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from elastic import StoreClient, StoreServer

from support.launching import free_port
from support.rendezvous_nodes import Node, nodes

# A node that gets no CPU for the time of node_timeout counts as lost.
QUICK = ("last_call_timeout=0.1", "settle=0.05", "node_timeout=6")


class Backend(NamedTuple):
    """The rendezvous backend: the first arguments of a node."""

    where: str
    endpoint: str
    run_id: str = "job"

    def words(self, least: int, most: int, *config: str) -> list[str]:
        return [self.where, self.endpoint, self.run_id, str(least), str(most), *QUICK, *config]


TORCHS = ("torch-store", "torch-file-store")


@pytest.fixture(
    params=[
        "c10d",
        "file",
        "tcpstore",
        "torch-server",
        "torch-store",
        "torch-file-store",
        "pickled-file",
        "etcd",
        "etcd-v2",
    ]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    kind: str = request.param
    if kind in TORCHS and not request.config.getoption("--nightly"):
        pytest.skip("each node imports torch: run with --nightly (see test_python_backends.py)")
    if kind == "c10d":
        yield Backend(kind, f"127.0.0.1:{free_port()}")
    elif kind == "tcpstore":
        with StoreServer() as server:
            yield Backend(kind, f"127.0.0.1:{server.port}")
    elif kind in ("torch-server", "torch-store"):
        dist = pytest.importorskip("torch.distributed")
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield Backend("tcpstore" if kind == "torch-server" else kind, f"127.0.0.1:{store.port}")
    elif kind in ("etcd", "etcd-v2"):
        yield Backend(kind, request.getfixturevalue("etcd"), str(uuid.uuid4()))
    else:
        if kind == "torch-file-store":
            pytest.importorskip("torch")
        yield Backend(kind, str(tmp_path / "state"))


@pytest.fixture
def store_backend() -> Iterator[tuple[Backend, StoreClient]]:
    """A server for the state, and a client that can damage the state."""
    with StoreServer() as server, StoreClient("127.0.0.1", server.port) as client:
        yield Backend("tcpstore", f"127.0.0.1:{server.port}"), client


def all_next(some: list[Node]) -> list[list[str]]:
    """Every node requests a round before the first reply is read."""
    for node in some:
        node.ask("next")
    return [node.answer().split() for node in some]


def test_nodes_share_a_store_end_the_job_and_use_its_id_again(backend: Backend) -> None:
    for _ in range(2):
        with nodes(3, *backend.words(3, 3)) as some:
            rounds = all_next(some)
            assert sorted(rank for rank, _, _ in rounds) == ["0", "1", "2"]
            assert {(size, store) for _, size, store in rounds} == {("3", rounds[0][2])}
            assert some[0].call("set", "greeting", "hello") == "ok"
            assert [node.call("get", "greeting") for node in some] == ["hello"] * 3
            # The first shut-down closes the job. The host of a coordinator waits for the others.
            some[0].ask("shutdown")
            assert some[1].call("closed") == "True"
            assert some[1].call("next").startswith("RendezvousClosed: ")
            for node in some[1:]:
                node.ask("shutdown")
            assert [node.answer() for node in some] == ["True"] * 3


def test_late_node_is_admitted_with_the_next_round(backend: Backend) -> None:
    with nodes(2, *backend.words(1, 2)) as (first, second):
        assert first.call("next").split()[:2] == ["0", "1"]
        second.ask("next")
        assert first.call("waiting") == "1"
        assert first.call("next").split()[:2] == ["0", "2"]
        assert second.answer().split()[:2] == ["1", "2"]


@pytest.mark.parametrize("kind", ["c10d", "file"])
def test_killed_node_is_lost(kind: str, tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}" if kind == "c10d" else str(tmp_path / "state")
    # The third node is a part of the first round. The victim does not host the coordinator.
    words = Backend(kind, endpoint).words(2, 3, "last_call_timeout=100")
    host, guest = (["is_host=true"], ["is_host=false"]) if kind == "c10d" else ([], [])
    with nodes(1, *words, *host) as (first,), nodes(2, *words, *guest) as (second, victim):
        rounds = all_next([first, second, victim])
        assert sorted(answer[:2] for answer in rounds) == [["0", "3"], ["1", "3"], ["2", "3"]]
        victim.kill()
        left = [first, second]
        for node in left:
            assert int(node.call("waiting")) > 0
        assert sorted(answer[:2] for answer in all_next(left)) == [["0", "2"], ["1", "2"]]


@pytest.mark.parametrize("kind", ["c10d", "file"])
def test_node_with_a_busy_interpreter_is_not_lost(kind: str, tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}" if kind == "c10d" else str(tmp_path / "state")
    with nodes(2, *Backend(kind, endpoint).words(2, 2, "node_timeout=4")) as some:
        all_next(some)
        assert some[0].call("keep-interpreter", "7") == "ok"
        assert [node.call("waiting-now") for node in some] == ["0", "0"]


def test_ctrl_c_ends_the_wait_and_the_next_call_continues(backend: Backend) -> None:
    with nodes(2, *backend.words(2, 2)) as (first, second):
        assert first.call("next-aloud") == "now"
        first.interrupt()
        assert first.answer().startswith("KeyboardInterrupt")
        assert {answer[1] for answer in all_next([first, second])} == {"2"}


def test_restarted_store_is_an_error(store_backend: tuple[Backend, StoreClient]) -> None:
    backend, client = store_backend
    with nodes(2, *backend.words(2, 2)) as some:
        all_next(some)
        assert client.delete_key("elastic/rendezvous/job")
        for node in some:
            reply = node.call("next")
            assert reply.startswith("RendezvousUnavailable: ")
            assert "the store was restarted" in reply


def test_foreign_state_in_the_store_is_rejected(store_backend: tuple[Backend, StoreClient]) -> None:
    backend, client = store_backend
    client.set("elastic/rendezvous/job", "gASVAAAA")
    with nodes(1, *backend.words(1, 1)) as (node,):
        assert "another value under this key" in node.call("next")


def test_static_ranks_are_the_given_ones() -> None:
    backend = Backend("static", f"127.0.0.1:{free_port()}")
    with (
        nodes(1, *backend.words(2, 2, "rank=1")) as (second,),
        nodes(1, *backend.words(2, 2, "rank=0")) as (first,),
    ):
        second.ask("next")
        assert first.call("next").split()[0] == "0"
        assert second.answer().split()[0] == "1"
