"""Timers over a pipe, the limit for uninterruptible workers, and the health check."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from elastic import ConfigError, timer
from elastic.agent.server import create_healthcheck_server
from elastic.multiprocessing.errors.evidence import ProcessFailure, add_timers
from elastic.torch_compat.agents.watchdog import Watchdog
from elastic.utils.process_state import is_uninterruptible_state, read_proc_state

from support.compiling import compile_stub
from support.launching import DEADLINE_S, clean_environment, free_port, launch

SET_TIMER = """
import os, signal, sys
from elastic import timer
timer.configure(timer.FileTimerClient(sys.argv[1]))
with timer.expires(after=60, scope="released"):
    pass
with timer.expires(after=0.05, scope="step"):
    signal.pause()
"""


class Events:
    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, request: timer.FileTimerRequest | None) -> None:
        self.names.append(name if request is None else f"{name} {request.scope_id}")


@pytest.mark.smoke
def test_an_expired_timer_kills_its_process_only(tmp_path: Path) -> None:
    path, events = str(tmp_path / "pipe"), Events()
    begun = int(time.time())
    server = timer.FileTimerServer(path, "job", log_event=events)
    server.start()
    assert server.get_last_progress_time() >= begun
    try:
        process = subprocess.run(
            [sys.executable, "-c", SET_TIMER, path], timeout=DEADLINE_S, check=False
        )
    finally:
        server.stop()
    assert process.returncode == -signal.SIGKILL
    assert events.names == [
        "watchdog started", "timer expired step", "kill worker process step", "watchdog stopped"
    ]  # fmt: skip
    assert not os.path.exists(path)
    server.stop()


def test_invalid_requests_are_ignored_and_no_group_of_processes_is_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "pipe")
    server = timer.FileTimerServer(path, "job")
    bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        server.start()
        client = timer.FileTimerClient(path)
        group = {"pid": -1, "scope_id": "all", "expiration_time": 1, "signal": 0}
        with open(path, "w") as pipe:
            pipe.write(f"no json\n[1]\n{{}}\n{json.dumps(group)}\n")
            for time_text in ("NaN", "Infinity", "-Infinity", "9" * 400):
                invalid = {"pid": bystander.pid, "scope_id": "x", "signal": 9}
                pipe.write(f'{json.dumps(invalid)[:-1]}, "expiration_time": {time_text}}}\n')
            for pid, number in (("9" * 30, 9), ("Infinity", 9), (bystander.pid, "9" * 30)):
                pipe.write(
                    f'{{"pid": {pid}, "scope_id": "x", "signal": {number}, "expiration_time": 1}}\n'
                )
        client._send_request(timer.FileTimerRequest(0, "group 0", 1, signal.SIGKILL))
        client._send_request(timer.FileTimerRequest(bystander.pid, "later", time.time() + 600))
        server.run_once()
        assert list(server._timers) == [(bystander.pid, "later")]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        server.stop()


def test_a_client_without_a_server_reports_it(tmp_path: Path) -> None:
    client = timer.FileTimerClient(str(tmp_path / "missing"))
    with pytest.raises(BrokenPipeError, match="no timer server reads"):
        client.acquire("step", 1.0)
    server = timer.FileTimerServer(str(tmp_path / "pipe"), "job")
    with pytest.raises(RuntimeError, match=r"has \d+ bytes: expected at most 4096"):
        timer.FileTimerClient(str(tmp_path / "pipe")).acquire("x" * 5000, 1.0)
    server.stop()


def test_a_worker_that_exceeds_its_timer_is_restarted_and_recorded(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal\n"
        "from elastic import timer\n"
        "timer.configure(timer.FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']))\n"
        "first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "hangs = first and os.environ['RANK'] == '1'\n"
        "with timer.expires(after=0.05 if hangs else 600, scope='step'):\n"
        "    signal.pause() if hangs else None\n"
        "signal.pause() if first else None\n"
    )
    environ = clean_environment(TORCHELASTIC_ENABLE_FILE_TIMER="1", TMPDIR=str(tmp_path))
    options = ["--event-log-handler=console", "--rdzv-id=job", "--role=trainer"]
    options += ["--nproc-per-node=2", "--max-restarts=1"]
    done = launch(*options, str(script), environ=environ, check=True)
    assert re.search(r"killing process \d+ with signal 9: the timer of step expired", done.stderr)
    failed = r"rank 1 \(.*\) killed by signal 9 .*; stopping the other workers"
    assert re.search(failed, done.stderr)
    assert os.listdir(tmp_path) == ["train.py"]
    recorded = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"name"')]
    assert "watchdog started" in [event["name"] for event in recorded], done.stderr
    (event,) = (event for event in recorded if event["name"] == "kill worker process")
    inner = json.loads(event["metadata"]["metadata"])
    assert (event["source"], event["metadata"]["state"]) == ("AGENT", "RUNNING")
    assert (event["metadata"]["run_id"], event["metadata"]["role"]) == ("job", "trainer")
    assert (inner["watchdog_event"], inner["scope_id"], inner["signal"]) == (
        "kill worker process", "step", "9"
    )  # fmt: skip


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_stub("stub_vfork.c", tmp_path_factory.mktemp("stuck") / "stuck")


def test_a_worker_in_an_uninterruptible_wait_ends_the_job_on_its_node(stuck: str) -> None:
    variable = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
    environ = clean_environment(**{variable: "0.2"})
    done = launch("--no-python", "--max-restarts=3", stuck, environ=environ)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert re.search(
        r"rank 0 \(process \d+\) has been in an uninterruptible wait.* for [\d.]+ s, and no signal "
        "can end it; this node leaves the job",
        done.stderr,
    )


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "soon"),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "99999"),
    ],
)
def test_an_invalid_variable_turns_its_check_off(
    variable: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog({variable: text}, "job")
    watchdog.start(dict, lambda: None)
    watchdog.stop()
    assert f"{variable} is {text!r}" in caplog.text and "the check is off" in caplog.text


def test_a_pipe_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "pipe"
    watchdog = Watchdog(
        {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(path)}, "job"
    )
    with pytest.raises(ConfigError, match=r"TORCHELASTIC_TIMER_FILE is .*: No such file"):
        watchdog.start(dict, lambda: None)


def test_a_kill_by_a_timer_is_the_workers_failure() -> None:
    killed, other = ProcessFailure(0, 7, -9), ProcessFailure(1, 8, -9)
    killed.failure_class, killed.hint = "platform", "something else"
    add_timers({0: killed, 1: other}, {7: "step"})
    assert (killed.failure_class, killed.cause) == ("user worker", "timer expired")
    assert "the timer of step expired" in killed.hint
    assert other.cause != "timer expired"


def test_the_state_of_a_process() -> None:
    assert read_proc_state(os.getpid()) == "R"
    assert read_proc_state(2**22 + 1) is None
    assert is_uninterruptible_state("D") and not is_uninterruptible_state("S")
    assert not is_uninterruptible_state(None)


def status_of(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=DEADLINE_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_health_check_reports_a_lack_of_progress() -> None:
    alive = [int(time.time())]
    server = create_healthcheck_server(lambda: alive[0], 0, timeout=60)
    server.start()
    try:
        assert status_of(server.port) == 200
        alive[0] -= 120
        assert status_of(server.port) == 503
    finally:
        server.stop()
    busy = create_healthcheck_server(lambda: 0, server.port, timeout=60)
    busy.stop()


def test_the_launcher_has_a_health_check_if_its_port_is_given() -> None:
    port = free_port()
    get = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/').status)"
    environ = clean_environment(TORCHELASTIC_HEALTH_CHECK_PORT=str(port))
    done = launch("--no-python", sys.executable, "-c", get, environ=environ)
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr


class _FailingServer(timer.TimerServer):
    """The first request raises; an EOFError of the queue ends the server."""

    def __init__(self, queue: Any) -> None:
        super().__init__(queue, max_interval=0.01)
        self.registered: list[Any] = []

    def register_timers(self, timer_requests: list[Any]) -> None:
        if timer_requests and not self.registered:
            self.registered.append("failed")
            raise ValueError("half a request")
        self.registered += timer_requests

    def clear_timers(self, worker_ids: set[Any]) -> None:
        pass

    def get_expired_timers(self, deadline: float) -> dict[Any, list[Any]]:
        return {}

    def _reap_worker(self, worker_id: Any) -> bool:
        return True


class _Requests(timer.RequestQueue):
    def __init__(self) -> None:
        self.left = ["first", "second"]

    def size(self) -> int:
        return 1

    def get(self, size: int, timeout: float) -> list[Any]:
        if not self.left:
            raise EOFError
        return [self.left.pop(0)]


def test_the_timer_server_continues_after_an_error() -> None:
    server = _FailingServer(_Requests())
    server._watchdog_loop()  # ends with the queue
    assert server.registered == ["failed", "second"]
