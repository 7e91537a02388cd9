"""Errors of handlers, callbacks and stores that a program brings along: the job continues."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any

import pytest
from elastic import metrics
from elastic._plug_in import plug_in
from elastic.agent.server import LocalElasticAgent, RunResult, WorkerSpec, WorkerState
from elastic.agent.server.native_elastic_agent import NativeElasticAgent
from elastic.cli.console import Console
from elastic.cli.messages import log_to
from elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes
from elastic.multiprocessing.errors import ErrorHandler, record
from elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from elastic.timer import FileTimerServer
from elastic.torch_compat.rendezvous.api import shut_down

from support.remote_agent import RemoteAgent


class Boom(Exception):
    """No class of Python's own: plug-ins have their own errors, such as grpc.RpcError."""


def explode(*_: Any, **__: Any) -> Any:
    raise Boom("no such\nserver")


def test_only_an_error_of_the_plug_in_is_caught(caplog: pytest.LogCaptureFixture) -> None:
    failed: set[str] = set()
    with plug_in("handler", failed):
        explode()
    assert failed == {"handler"}
    assert (
        "the handler failed, and the job continues without it: Boom: no such server ("
        in caplog.text
    )
    assert "test_plug_ins.py:" in caplog.text
    for error in (SignalException("received SIGTERM", signal.SIGTERM), KeyboardInterrupt()):
        with pytest.raises(type(error)), plug_in("handler"):
            raise error


class Failing:
    """A rendezvous handler and its store, of which only the rendezvous works."""

    shutdown = explode

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(self, 0, 1, RendezvousStoreInfo("localhost", 1))

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "job"

    get_backend = explode  # needed for events only
    add = explode  # of the exit barrier

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]


class Exploding(metrics.MetricHandler):
    emit = explode


def test_an_agent_outlives_its_handlers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("elastic.metrics.api._default", [Exploding()])
    handler: Any = Failing()
    spec = WorkerSpec("trainer", 1, handler, None, "unused", (), 1, 0.001)
    states = [WorkerState.HEALTHY, WorkerState.HEALTHY, WorkerState.SUCCEEDED]
    result = RemoteAgent(spec, states).run()
    assert isinstance(result, RunResult)
    assert result.state is WorkerState.SUCCEEDED
    shut_down(handler)
    for name in ("metric handler", "event handler", "exit barrier", "shutdown"):
        assert f"the {name}" in caplog.text
    assert caplog.text.count("the event handler failed") == 1


def test_the_native_agent_outlives_a_health_check() -> None:
    class Check:
        start = stop = explode

    spec = WorkerSpec("trainer", 1, entrypoint="/bin/true")
    assert LocalElasticAgent(spec, health_check_server=Check()).run().exit_code == 0


def test_the_native_agent_calls_a_broken_handler_of_events_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("elastic.events.record", explode)
    agent = NativeElasticAgent(WorkerSpec("trainer", 1, entrypoint="/bin/true"))
    for _ in range(2):
        agent._timer_event("timer expired", None)
    assert caplog.text.count("the event handler failed") == 1


def test_the_native_agent_outlives_a_handler_of_its_log() -> None:
    class Exploding(logging.Handler):
        emit = explode

    handler = Exploding()
    logging.getLogger("elastic").addHandler(handler)
    try:
        spec = WorkerSpec("trainer", 1, entrypoint="/bin/false", max_restarts=1)
        assert LocalElasticAgent(spec).run().exit_code == 1
    finally:
        logging.getLogger("elastic").removeHandler(handler)


def test_a_message_that_cannot_be_formatted_raises_nothing_into_its_author(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    console = Console()
    handler = log_to(console, logging.INFO, as_records=False)
    assert handler is not None
    try:
        logging.getLogger("site").warning("%d", "two")
    finally:
        root.removeHandler(handler)
    assert "test_plug_ins.py" in capsys.readouterr().err, "logging shows where the mistake is"


class OlderHandler:
    """An error handler for an older torch: without the methods that were added later."""

    initialize = explode

    def __init__(self) -> None:
        self.recorded: list[BaseException] = []

    def record_exception(self, error: BaseException) -> None:
        self.recorded.append(error)


def test_recorded_functions_keep_their_result_and_their_error() -> None:
    older: Any = OlderHandler()
    assert record(lambda: 5, older)() == 5
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 // 0, older)()
    assert [type(error) for error in older.recorded] == [ZeroDivisionError]

    class Broken(ErrorHandler):
        record_exception = record_success = explode

    assert record(lambda: 5, Broken())() == 5
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 // 0, Broken())()


def test_processes_start_without_the_files_of_a_broken_plug_in(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Broken(DefaultLogsSpecs):
        reify = explode

    program = start_processes(
        "p", sys.executable, {0: ("-c", "print('ran')")}, {0: {}}, Broken("/tmp")
    )
    result = program.wait()
    assert result is not None
    assert not result.is_failed()
    assert capfd.readouterr().out == "ran\n"


def test_a_timer_server_outlives_its_callback(tmp_path: Any) -> None:
    server = FileTimerServer(str(tmp_path / "pipe"), "job", log_event=explode)
    server._report("timer expired", None)
    server.stop()
