"""The names of torch's rendezvous API, in one process."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from elastic import ConfigError, RendezvousError, StoreClient, StoreServer, rendezvous
from elastic.rendezvous import RendezvousParameters
from elastic.rendezvous.keepers import backends

from support.launching import run_isolated
from support.plug_ins import install


class Handler(rendezvous.RendezvousHandler):
    """The handler of a plug-in."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_backend(self) -> str:
        return self._name

    def next_rendezvous(self) -> rendezvous.RendezvousInfo:
        where = rendezvous.RendezvousStoreInfo("host", 1)
        return rendezvous.RendezvousInfo(None, 0, 1, where)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "job"

    def shutdown(self) -> bool:
        return True


def parameters(backend: str, endpoint: str = "host:1", **config: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "job", 1, 2, **config)


def test_every_public_name_exists_and_torch_is_not_loaded() -> None:
    names = "import elastic.rendezvous as r; [getattr(r, name) for name in r.__all__]"
    assert run_isolated(f"{names}; print('torch' in sys.modules)") == "False\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("", "host:1", "job", 1, 1), "backend is empty"),
        (("c10d", "host:1", "job", 0, 1), "at least one node"),
        (("c10d", "host:1", "job", 3, 2), "max_nodes is 2, but min_nodes is 3"),
    ],
)
def test_invalid_parameters_are_rejected(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RendezvousParameters(*words)


def test_settings_are_read_as_torch_reads_them() -> None:
    given = parameters("c10d", yes="True", one=1, no="n", number="12", bad="1.5")
    assert given.get("number") == "12"
    assert given.get("missing", 3) == 3
    assert [given.get_as_bool(key) for key in ("yes", "one", "no", "missing")] == [
        True, True, False, None,
    ]  # fmt: skip
    assert given.get_as_int("number") == 12
    for read in (given.get_as_int, given.get_as_bool):
        with pytest.raises(ValueError, match=r"setting bad is '1.5'"):
            read("bad")


def test_a_name_is_registered_once() -> None:
    registry = rendezvous.RendezvousHandlerRegistry()

    def create(given: RendezvousParameters) -> Handler:
        return Handler(given.backend)

    registry.register("mine", create)
    registry.register("mine", create)
    assert registry.create_handler(parameters("mine")).get_run_id() == "job"
    with pytest.raises(ValueError, match="'mine' has been registered"):
        registry.register("mine", Handler)  # type: ignore[arg-type]
    registry.register("liar", lambda _: Handler("other"))
    with pytest.raises(RendezvousError, match=r"'liar'.*'other'"):
        registry.create_handler(parameters("liar"))


def test_plug_ins_are_loaded_when_their_name_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugged.py").write_text(
        "from test_rendezvous_api import Handler\n"
        "def make():\n    return lambda given: Handler(given.backend)\n"
        "def broken():\n    raise RuntimeError('no luck')\n"
    )
    install(tmp_path, "torchrun.handlers", plugged="plugged:make", broken="plugged:broken")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = rendezvous.RendezvousHandlerRegistry()
    assert registry.create_handler(parameters("plugged")).get_backend() == "plugged"
    with pytest.raises(RendezvousError, match=r"'broken'.*no luck"):
        registry.create_handler(parameters("broken"))
    with pytest.raises(ConfigError, match="no rendezvous backend 'other'; known are plugged"):
        registry.create_handler(parameters("other"))
    with pytest.raises(ConfigError, match=r"'plugged' is a rendezvous handler, .* needs a backend"):
        backends.create("plugged", "host:1", "job", {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (parameters("c10d", join_timout=3), "no key 'join_timout'; did you mean join_timeout"),
        (parameters("c10d", node_timeout=-1), "node_timeout is '-1'"),
        (parameters("static"), "every node needs the setting rank"),
        (parameters("static", "host", rank=0), "HOST:PORT"),
        (parameters("file", ""), "an endpoint is required"),
    ],
)
def test_invalid_backend_settings_are_rejected(given: RendezvousParameters, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rendezvous.get_rendezvous_handler(given)


def test_store_info_is_written_by_rank_0_and_read_by_all() -> None:
    with StoreServer() as server, StoreClient("127.0.0.1", server.port) as store:
        first = rendezvous.RendezvousStoreInfo.build(0, store, "10.1.2.3")
        second = rendezvous.RendezvousStoreInfo.build(1, store, "10.9.9.9")
    assert first == second
    assert first.master_addr == "10.1.2.3"
    assert 0 < first.master_port < 65536


def test_timeouts_have_torchs_defaults() -> None:
    plain = rendezvous.RendezvousTimeout()
    seconds = [getattr(plain, n).total_seconds() for n in ("join", "last_call", "close")]
    assert seconds == [600, 30, 30]
    assert rendezvous.RendezvousTimeout(join=timedelta(seconds=7)).join.total_seconds() == 7
    with pytest.raises(ValueError, match="join timeout"):
        rendezvous.RendezvousTimeout(join=timedelta(0))


def test_a_handler_takes_torchs_limit_of_the_pause_between_writes(tmp_path: Path) -> None:
    backend = backends.create("file", str(tmp_path / "state"), "job", {})
    make = rendezvous.DynamicRendezvousHandler.from_backend
    assert make("job", None, backend, 1, 1).settings.cas_backoff_max_seconds == 0.0
    given = make("job", None, backend, 1, 1, cas_backoff_max_seconds=2.5)
    assert given.settings.cas_backoff_max_seconds == 2.5


def test_create_backend_hosts_a_store_if_configured() -> None:
    backend, store = rendezvous.create_backend(parameters("c10d", "127.0.0.1:0", is_host=True))
    assert backend.set_state(b"one")[2]
    assert store.num_keys() >= 1


def test_etcd_without_its_client_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "etcd3gw.client", None)
    with pytest.raises(ConfigError, match=r"needs etcd3gw: pip install 'elastic-launch\[etcd\]'"):
        backends.create("etcd", "host", "job", {})
