"""Events, metrics, timers and helpers with torch's names, and the page that lists all names."""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import pkgutil
import re
import signal
import socket
import sys
from typing import Any

import pytest
from elastic import ConfigError, StoreClient, StoreServer, events, metrics, timer
from elastic.agent.server.api import _RoleInstanceInfo
from elastic.launcher.api import _get_addr_and_port, _get_entrypoint_name
from elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous, create_rdzv_handler
from elastic.rendezvous.utils import parse_rendezvous_endpoint
from elastic.utils import get_env_variable_or_raise, get_socket_with_port, macros
from elastic.utils.data import CyclingIterator
from elastic.utils.distributed import get_free_port
from elastic.utils.store import barrier, store_timeout, synchronize

from support.launching import DEADLINE_S, free_endpoint, run_program
from support.paths import ROOT
from support.receivers import Values, recorded_events
from support.waiting import together

PAGE = ROOT / "tests" / "torch_suite" / "names.md"


# Taken from torch on their first use.
TORCHS_OWN = (
    "ElasticDistributedSampler", "create_c10d_store", "log_debug_info_for_expired_timers"
)  # fmt: skip


def listed() -> list[tuple[str, str]]:
    """Modules and names of the page's table of names."""
    found = []
    for line in PAGE.read_text().splitlines():
        row = re.match(r"\| `(elastic[\w.]*)` \| ([^|]*) \|", line)
        if row:
            found += [(row[1], name) for name in re.findall(r"`(\w+)`", row[2])]
    return found


@pytest.mark.parametrize(("module", "name"), listed())
def test_every_name_of_the_page_exists(module: str, name: str) -> None:
    if name in TORCHS_OWN:
        pytest.importorskip("torch")
    assert hasattr(importlib.import_module(module), name)


def torchs_modules() -> list[str]:
    """The public modules of torch elastic, torch's launcher and its command line."""
    elastic = pytest.importorskip("torch.distributed.elastic")
    found = ["torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher.api"]
    for module in pkgutil.walk_packages(elastic.__path__, f"{elastic.__name__}."):
        if "._" not in module.name:
            found.append(module.name)
    return found


def exported(module: Any) -> list[str]:
    """The names in ``__all__``, or the classes and functions that the module defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def test_every_public_name_of_torch_exists_and_is_on_the_page() -> None:
    offered, _ = PAGE.read_text().split("\nNot offered:\n")
    problems, count = [], 0
    for theirs in torchs_modules():
        name = theirs.replace("torch.distributed.elastic", "elastic")
        ours = name.replace("torch.distributed.", "elastic.")
        for public in exported(importlib.import_module(theirs)):
            count += 1
            if not hasattr(importlib.import_module(ours), public):
                problems.append(f"{ours}.{public} does not exist")
            if not re.search(rf"\b{public}\b", offered):
                problems.append(f"{public} of {ours} is not on the page")
    assert problems == []
    assert count > 140


# Not public in torch, but imported by programs.
PRIVATE = """
agent.server.api: DEFAULT_ROLE _get_fq_hostname _RoleInstanceInfo
events.handlers: _log_handlers
launcher.api: _get_addr_and_port _get_entrypoint_name
multiprocessing.api: _get_kill_signal
rendezvous._etcd_stub: Client EtcdException EtcdKeyNotFound EtcdStubError
rendezvous.utils: _parse_rendezvous_config
run: LaunchConfig elastic_launch _get_logs_specs_class
"""


@pytest.mark.parametrize("line", PRIVATE.strip().splitlines())
def test_private_names_that_programs_import_exist(line: str) -> None:
    module, _, names = line.partition(":")
    for name in names.split():
        home = importlib.import_module(f"elastic.{module}")
        assert hasattr(home, name), name


def test_roles_are_sorted_and_found() -> None:
    infos = [
        _RoleInstanceInfo("b", 0, 2),
        _RoleInstanceInfo("a", 1, 1),
        _RoleInstanceInfo("a", 0, 3),
    ]
    sent = [_RoleInstanceInfo.deserialize(info.serialize()) for info in infos]
    sent.sort(key=functools.cmp_to_key(_RoleInstanceInfo.compare))
    assert [(info.role, info.rank, info.local_world_size) for info in sent] == [
        ("a", 0, 3), ("a", 1, 1), ("b", 0, 2)
    ]  # fmt: skip
    assert _RoleInstanceInfo.find_role_boundaries(sent, "a") == (0, 1)
    assert _RoleInstanceInfo.find_role_boundaries(sent, "c") == (-1, -1)


def test_names_of_entry_points_and_static_addresses() -> None:
    assert _get_entrypoint_name(print, []) == "print"
    assert _get_entrypoint_name(sys.executable, ["-u", "train.py", "x"]) == "train.py"
    assert _get_entrypoint_name("/bin/x", ["a"]) == "/bin/x"
    assert _get_entrypoint_name(None, []) == _get_entrypoint_name(sys.executable, []) == ""
    assert _get_addr_and_port(RendezvousParameters("c10d", "h:1", "j", 1, 1)) == (None, None)
    assert _get_addr_and_port(RendezvousParameters("static", " h:1 ", "j", 1, 1)) == ("h", 1)
    for endpoint in ("h", ""):
        with pytest.raises(ValueError, match=r"port|host"):
            _get_addr_and_port(RendezvousParameters("static", endpoint, "j", 1, 1))


def test_static_handlers_have_torchs_arguments_and_record_what_they_do() -> None:
    endpoint = free_endpoint()
    host, port = endpoint.split(":")
    with recorded_events("dynamic_rendezvous") as lines:
        handler = StaticTCPRendezvous(host, int(port), 0, 1, "job", 60)
        assert (handler.get_backend(), handler.get_run_id()) == ("static", "job")
        for _ in range(2):
            info = handler.next_rendezvous()
            assert (info.rank, info.world_size) == (0, 1)
        handler.set_closed()
        with pytest.raises(RendezvousClosedError):
            handler.next_rendezvous()
        handler.shutdown()
    found = [events.RdzvEvent.deserialize(line) for line in lines]
    states = [(event.name.rpartition(".")[2], event.node_state.value) for event in found]
    assert states == [
        *[("next_rendezvous", "RUNNING")] * 4, ("set_closed", "SUCCEEDED"),
        ("next_rendezvous", "RUNNING"), ("next_rendezvous", "FAILED"), ("shutdown", "SUCCEEDED"),
    ]  # fmt: skip
    assert {event.run_id for event in found} == {"job"}
    assert (found[1].rank, found[6].error_trace.splitlines()[-1].partition(":")[0]) == (
        0, "elastic.errors.RendezvousClosed"
    )  # fmt: skip
    with pytest.raises(ValueError, match="rank"):
        create_rdzv_handler(RendezvousParameters("static", endpoint, "job", 1, 1))
    with pytest.raises(ValueError, match="expected static"):
        create_rdzv_handler(RendezvousParameters("c10d", endpoint, "job", 1, 1, rank=0))


def test_events_survive_their_json_form() -> None:
    event = events.Event("restart", events.EventSource.AGENT, 7, {"round": 2, "why": None})
    assert events.Event.deserialize(str(event)) == event
    moved = events.RdzvEvent("join", "job", "m", "host", 1, events.NodeState.INIT, rank=3)
    assert events.RdzvEvent.deserialize(moved.serialize()) == moved


def test_recorded_events_reach_the_handlers_of_their_destination() -> None:
    with recorded_events("null", "dynamic_rendezvous") as lines:
        events.record(events.Event("start", events.EventSource.WORKER))
        events.construct_and_record_rdzv_event("job", "joined", events.NodeState.RUNNING)
    first, second = map(json.loads, lines)
    assert (first["name"], first["source"]) == ("start", "WORKER")
    assert second["name"] == (
        "test_surface.py:test_recorded_events_reach_the_handlers_of_their_destination"
    )
    with pytest.raises(ConfigError, match="no event handler 'syslog'"):
        events.record(events.Event("start", events.EventSource.WORKER), "syslog")


def test_metrics_go_to_the_handler_of_their_group() -> None:
    mine, rest = Values(), Values()
    metrics.configure(mine, "mine")
    metrics.configure(rest)
    try:
        metrics.put_metric("steps", 3, "mine")
        metrics.put_metric("other", 1)

        @metrics.prof(group="mine")
        def work(fails: bool) -> int:
            if fails:
                raise ValueError
            return 5

        assert work(False) == 5
        with pytest.raises(ValueError):
            work(True)
    finally:
        metrics.configure(metrics.NullMetricHandler())
        metrics.configure(metrics.NullMetricHandler(), "mine")
    assert rest.values == [("torchelastic", "other", 1)]
    names = [name for _, name, _ in mine.values]
    key = f"{test_metrics_go_to_the_handler_of_their_group.__name__}.<locals>.work"
    assert names == [
        "steps",
        f"{key}.success",
        f"{key}.duration.ms",
        f"{key}.failure",
        f"{key}.duration.ms",
    ]


def work_too_long(queue: Any) -> None:
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=60):
        pass
    with timer.expires(after=0.1, scope="step"):
        signal.pause()


def test_a_worker_that_exceeds_its_timer_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    server = timer.LocalTimerServer(queue, max_interval=0.05)
    server.start()
    worker = spawn.Process(target=work_too_long, args=(queue,))
    worker.start()
    worker.join(DEADLINE_S)
    server.stop()
    assert worker.exitcode == -signal.SIGKILL
    assert "the timer of step expired" in caplog.text


def test_a_timer_needs_a_client() -> None:
    code = "from elastic import timer\nwith timer.expires(1): pass"
    done = run_program([sys.executable, "-c", code])
    assert "RuntimeError: no timer client" in done.stderr


def test_ranks_exchange_values_over_a_store() -> None:
    with StoreServer("127.0.0.1", 0) as server:

        def call(rank: int) -> list[bytes]:
            store = StoreClient(server.host, server.port)
            return synchronize(store, b"%d" % rank, rank, 3, "exchange/")

        ranks = [functools.partial(call, rank) for rank in range(3)]
        assert together(*ranks) == [[b"0", b"1", b"2"]] * 3
        store = StoreClient(server.host, server.port, timeout=7)
        with store_timeout(store, 2):
            assert store.timeout == 2
        assert store.timeout == 7
        with pytest.raises(TimeoutError, match=r"barrier late: missing_ranks=\[host1\]"):
            barrier(store, 2, "late", 1, rank=0, rank_tracing_decoder=lambda r: f"host{r}")


def test_epochs_are_iterated_one_after_the_other() -> None:
    made = CyclingIterator(3, lambda epoch: iter(range(epoch, epoch + 2)), start_epoch=1)
    assert list(made) == [1, 2, 2, 3]


def test_only_a_missing_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_TEST_VARIABLE", "")
    assert get_env_variable_or_raise("ELASTIC_TEST_VARIABLE") == ""
    monkeypatch.delenv("ELASTIC_TEST_VARIABLE")
    with pytest.raises(ValueError, match="ELASTIC_TEST_VARIABLE is not set"):
        get_env_variable_or_raise("ELASTIC_TEST_VARIABLE")


def test_a_port_of_localhost_is_of_an_address_that_can_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def addresses(*hosts: str) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]

    of_no_machine = "192.0.2.1"
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: addresses(of_no_machine, "127.0.0.1")
    )
    with get_socket_with_port() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses(of_no_machine))
    with pytest.raises(RuntimeError, match="no address of localhost can be used"):
        get_socket_with_port()


def test_small_helpers() -> None:
    assert macros.substitute(["--rank=${local_rank}", 3], "2") == ["--rank=2", 3]
    assert 0 < get_free_port() < 65536
    assert parse_rendezvous_endpoint("", 1) == ("localhost", 1)
    assert parse_rendezvous_endpoint("[::1]:29", 1) == ("::1", 29)
    with pytest.raises(ConfigError):
        parse_rendezvous_endpoint("host:99999", 1)
