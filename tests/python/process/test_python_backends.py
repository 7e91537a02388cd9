"""Python backends that follow the rules of torch's backends or violate them: a join always ends."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from elastic import (
    _C,
    ConfigError,
    RendezvousError,
    RendezvousTimeout,
    StoreClient,
    StoreServer,
)
from elastic.rendezvous import (
    DynamicRendezvousHandler,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
    c10d_rendezvous_backend,
)
from elastic.rendezvous.keepers import backends
from elastic.rendezvous.keepers import etcd as etcd_backend
from elastic.torch_compat.rendezvous import handlers
from elastic.torch_compat.rendezvous.handlers import RendezvousTimeout as Timeouts

from support.launching import clean_environment, free_port, launch
from support.plug_ins import install
from support.waiting import together


class Memory:
    """Like torch's in-memory test backend: ``set_state`` returns no result."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.state: bytes | None = None
        self.token: int | None = None
        self.is_written = threading.Event()

    def get_state(self) -> tuple[bytes, Any] | None:
        with self._lock:
            return None if self.state is None else (self.state, self.token)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        with self._lock:
            if token == self.token:
                self.state, self.token = state, (self.token or 0) + 1
                self.is_written.set()
        return None


def handler(backend: Any, nodes: int = 2, join: float = 60.0) -> DynamicRendezvousHandler:
    timeout = Timeouts(
        join=timedelta(seconds=join),
        last_call=timedelta(seconds=0.1),
        close=timedelta(seconds=2),
    )
    return DynamicRendezvousHandler.from_backend("job", None, backend, nodes, nodes, None, timeout)


def ranks_of_two(backend: Callable[[], Any]) -> list[int]:
    """The ranks of two nodes that use the backend."""
    handlers = [handler(backend()) for _ in range(2)]
    rounds = together(*(one.next_rendezvous for one in handlers))
    for one in handlers:
        one.shutdown()
    assert {info.world_size for info in rounds} == {2}
    return sorted(info.rank for info in rounds)


def test_a_backend_whose_set_state_returns_none_forms_a_round() -> None:
    memory = Memory()
    assert ranks_of_two(lambda: memory) == [0, 1]


@pytest.mark.parametrize("kind", ["TCPStore", "FileStore", "HashStore", "torch's backend"])
def test_backends_over_torchs_stores_form_a_round(kind: str, tmp_path: Path) -> None:
    """In one process; in the nightly test_rendezvous_handlers.py has a process for each node."""
    torchs = pytest.importorskip("torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")
    dist = pytest.importorskip("torch.distributed")
    if kind == "TCPStore":
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        stores = [server, dist.TCPStore("127.0.0.1", server.port, is_master=False)]
    elif kind == "FileStore":
        stores = [dist.FileStore(str(tmp_path / "store")) for _ in range(2)]
    else:
        stores = [dist.HashStore()] * 2
    module = torchs if kind == "torch's backend" else backends
    nodes = iter(stores)
    assert ranks_of_two(lambda: module.C10dRendezvousBackend(next(nodes), "job")) == [0, 1]


PLUGGED = """
import atexit

class Alone:
    name = "plugged"
    state, token = None, 0

    def get_state(self):
        return self.state and (self.state, self.token)

    def set_state(self, state, token=None):
        self.state, self.token = state, self.token + 1

def leave(text):
    with open({path!r}, "a") as file:
        file.write(text)

def make(endpoint, run_id, settings):
    atexit.register(leave, "backend ")
    return Alone()

def decide(failure):
    return "stop"

atexit.register(leave, "module ")
"""


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--nnodes=1", "--rdzv-backend=plugged", "--rdzv-endpoint=here:1"], "backend module "),
        (["--standalone", "--failure-policy=policy.toml"], "module "),
    ],
    ids=["backend", "policy function"],
)
def test_what_a_plug_in_has_registered_to_run_at_exit_runs(
    words: list[str], left: str, tmp_path: Path
) -> None:
    (tmp_path / "plugged.py").write_text(PLUGGED.format(path=str(tmp_path / "left")))
    (tmp_path / "policy.toml").write_text('function = "plugged:decide"\n')
    path = install(tmp_path, "elastic.backends", plugged="plugged:make")
    environ = clean_environment(PYTHONPATH=path)
    done = launch(*words, "--no-python", "true", cwd=tmp_path, environ=environ)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "left").read_text() == left


class Watched(Memory):
    """A store with a watch."""

    def __init__(self) -> None:
        super().__init__()
        self.has_changed = threading.Condition(self._lock)
        self.waits = 0
        self.has_waited = threading.Event()

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        with self.has_changed:
            was_set = token == self.token
            if was_set:
                self.state, self.token = state, (self.token or 0) + 1
                self.has_changed.notify_all()
            assert self.state is not None
            return self.state, self.token, was_set

    def wait_for_change(self, token: Any, timeout: float) -> None:
        self.has_waited.set()
        with self.has_changed:
            self.waits += 1
            self.has_changed.wait_for(lambda: self.token != token, timeout)


class CannotWatch(Watched):
    def wait_for_change(self, token: Any, timeout: float) -> None:
        super().wait_for_change(token, 0)
        raise OSError("no watch today")


def test_a_python_backend_can_watch() -> None:
    """The coordinator writes its rounds while it waits for a change."""
    memory = Watched()
    assert ranks_of_two(lambda: memory) == [0, 1]
    assert memory.has_waited.wait(60)


def test_a_backend_whose_watch_fails_is_polled() -> None:
    memory = CannotWatch()
    assert ranks_of_two(lambda: memory) == [0, 1]
    # Each node's watch has failed once, and is not called again.
    assert 1 <= memory.waits <= 2


class DropsWrites(Memory):
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        return None


class RejectsWrites(Memory):
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        if self.state is None:
            return super().set_state(state, token)
        return self.state, self.token, False


class FailsToWrite(Memory):
    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        raise OSError("read-only")


class FailsToRead(Memory):
    def get_state(self) -> tuple[bytes, Any] | None:
        raise OSError("not there")


class Hangs(Memory):
    def __init__(self) -> None:
        super().__init__()
        self.is_released = threading.Event()

    def get_state(self) -> tuple[bytes, Any] | None:
        self.is_released.wait()
        return super().get_state()


class FailsAtFirst(Memory):
    failures = 3

    def get_state(self) -> tuple[bytes, Any] | None:
        if self.failures > 0:
            self.failures -= 1
            raise RendezvousConnectionError("not yet")
        return super().get_state()


def test_a_backend_that_fails_at_first_is_tried_again() -> None:
    one = handler(FailsAtFirst(), nodes=1)
    info = one.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert one.num_nodes_waiting() == 0
    assert one.shutdown()


class ReturnsText(Memory):
    def get_state(self) -> Any:
        return "neither bytes nor a token"


class HasAnError(Memory):
    def get_state(self) -> Any:
        return self.no_such_attribute  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ReturnsText, r"get_state\(\) must return \(bytes, token\) or None"),
        (HasAnError, "no_such_attribute"),
    ],
)
def test_a_backend_with_a_mistake_ends_the_join(kind: type[Memory], message: str) -> None:
    with pytest.raises(RendezvousError, match=message):
        handler(kind(), nodes=1).next_rendezvous()


def test_a_backend_without_its_methods_is_rejected_at_once() -> None:
    with pytest.raises(AttributeError, match="name"):
        handler(object())


@pytest.mark.parametrize("kind", [DropsWrites, RejectsWrites, FailsToWrite, FailsToRead, Hangs])
def test_a_backend_that_misbehaves_ends_the_join_after_its_timeout(kind: type[Memory]) -> None:
    backend = kind()
    if kind is RejectsWrites:  # only the state that another node wrote
        one = handler(backend)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(one.next_rendezvous)
            assert backend.is_written.wait(60)
            with pytest.raises(RendezvousTimeout):
                handler(backend, join=1.0).next_rendezvous()
            one.set_closed()
            one.shutdown()
            assert waiting.exception() is not None
        return
    late = handler(backend, join=1.0)
    try:
        with pytest.raises(RendezvousTimeout) as raised:
            late.next_rendezvous()
        if kind is FailsToRead:  # why, without a traceback
            assert str(raised.value).endswith("it cannot be reached: memory: OSError: not there")
    finally:
        if isinstance(backend, Hangs):
            backend.is_released.set()


@pytest.fixture(params=["c10d", "torch", "native", "file", "etcd"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind = request.param
    if kind == "file":
        yield _C.file_backend(str(tmp_path / "state"), "job")
    elif kind == "etcd":
        yield backends.create("etcd", request.getfixturevalue("etcd"), str(uuid.uuid4()), {})
    elif kind == "torch":
        dist = pytest.importorskip("torch.distributed")
        yield backends.C10dRendezvousBackend(dist.HashStore(), "job")
    else:
        with StoreServer() as server:
            if kind == "native":
                yield _C.store_backend("127.0.0.1", server.port, "job")
            else:
                store = StoreClient("127.0.0.1", server.port)
                yield backends.C10dRendezvousBackend(store, "job")


@pytest.mark.parametrize("token", ["invalid", b"invalid", b"\xff", 1.5, object()])
def test_an_invalid_token_returns_the_stored_state(backend: Any, token: Any) -> None:
    answer = backend.set_state(b"x")
    assert answer is not None and answer[2]
    stored = backend.get_state()
    assert stored is not None and stored[0] == b"x"
    assert backend.set_state(b"y", token) == (*stored, False)


@pytest.mark.parametrize("size", [1_600_000, 3_000_000])  # for etcd, and for gRPC
def test_a_record_that_etcd_refuses_for_its_size_is_no_outage(etcd: str, size: int) -> None:
    backend = etcd_backend.create("etcd", etcd, "large", {})
    with pytest.raises(RendezvousStateError, match=f"record of {size} bytes .*max-request-bytes"):
        backend.set_state(b"x" * size)


def test_create_backend_raises_a_connection_error() -> None:
    absent = f"127.0.0.1:{free_port()}"
    here = RendezvousParameters("c10d", absent, "job", 1, 2, is_host=False, read_timeout=1)
    with pytest.raises(RendezvousConnectionError, match=r"127\.0\.0\.1"):
        backends.create_backend(here)
    with StoreServer() as server:
        taken = RendezvousParameters("c10d", f"127.0.0.1:{server.port}", "job", 1, 2, is_host=True)
        with pytest.raises(RendezvousConnectionError, match="in use"):
            backends.create_backend(taken)


def test_the_c10d_module_creates_its_backend_under_any_name() -> None:
    """The first process of a host starts the store, and the next ones use it, as in torch."""
    endpoint = f"127.0.0.1:{free_port()}"
    given = RendezvousParameters("mine", endpoint, "job", 1, 2, store_type=" TCP ")
    first, hosted = c10d_rendezvous_backend.create_backend(given)
    second, store = c10d_rendezvous_backend.create_backend(given)
    assert first.set_state(b"state")[2]
    assert second.get_state()[0] == b"state"
    assert (hosted.port, store.num_keys()) == (store.port, hosted.num_keys())


@pytest.mark.parametrize(
    ("setting", "value"), [("store_type", "redis"), ("read_timeout", "0"), ("read_timeout", "x")]
)
def test_the_c10d_module_rejects_an_invalid_setting(setting: str, value: str) -> None:
    here = RendezvousParameters("c10d", "127.0.0.1:0", "job", 1, 2, **{setting: value})
    with pytest.raises(ConfigError, match=f"{setting} is .*: expected"):
        c10d_rendezvous_backend.create_backend(here)


@pytest.mark.parametrize(("least", "most"), [(0, 1), (2, 1)])
def test_from_backend_rejects_invalid_numbers_of_nodes(least: int, most: int) -> None:
    with pytest.raises(ConfigError, match="min_nodes is"):
        DynamicRendezvousHandler.from_backend("job", None, Memory(), least, most)


def test_settings_of_a_handler_may_have_commas() -> None:
    given = {"join_timeout": 3, "etcd_prefix": "/a,b=c", "protocol": None}
    keys = handlers._keys(RendezvousParameters("etcd", "host", "job", 1, 2, **given))
    assert keys.parameters["etcd_prefix"] == "/a,b=c"
    assert keys.timings["join_timeout"] == 3.0
