"""Functions and programs that a Python program launches by ``elastic.launcher``."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from elastic import ConfigError
from elastic.launcher import LaunchConfig, elastic_launch
from elastic.launcher.api import LaunchError
from elastic.multiprocessing import ChildFailedError, DefaultLogsSpecs, Std

from support import launch_functions
from support.function_jobs import config
from support.launching import (
    DEADLINE_S,
    free_port,
    run_program,
    started,
)
from support.waiting import together


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every launch removes its temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert os.listdir(folder) == []


@pytest.mark.smoke
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_values_are_returned_by_global_rank(method: str) -> None:
    call = elastic_launch(config(3, start_method=method), launch_functions.rank_and)
    got = call("part ${local_rank}", {"b": 1})
    assert got == {rank: (rank, f"part {rank}", {"b": 1}) for rank in range(3)}


def test_a_lost_log_directory_fails_a_launch_of_forked_functions(tmp_path: Path) -> None:
    logs = tmp_path / "logs"

    def lose() -> None:
        shutil.rmtree(logs)
        logs.touch()
        raise SystemExit(5)

    specs = DefaultLogsSpecs(str(logs))
    chosen = config(1, start_method="fork", max_restarts=1, logs_specs=specs)
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(chosen, lose)()
    assert caught.value.get_first_failure()[1].exitcode == 5


def test_a_field_without_effect_is_reported() -> None:
    with pytest.warns(UserWarning, match="LaunchConfig.metrics_cfg is ignored"):
        elastic_launch(config(1, metrics_cfg={"a": "b"}), launch_functions.rank_and)()


def test_nodes_without_a_run_id_do_not_become_one_job(caplog: pytest.LogCaptureFixture) -> None:
    """Two programs that share an endpoint, and neither of them names its job."""
    several = LaunchConfig(
        *(1, 2, 1), rdzv_backend="c10d", rdzv_endpoint=f"localhost:{free_port()}", max_restarts=0,
        rdzv_configs={"last_call_timeout": "0.1"},
    )  # fmt: skip
    ids = set()
    for _ in range(2):
        (run_id,) = elastic_launch(
            several, functools.partial(os.getenv, "TORCHELASTIC_RUN_ID")
        )().values()
        ids.add(run_id)
    assert len(ids) == 2 and "none" not in ids
    assert caplog.text.count("LaunchConfig has no run_id") == 2


def test_a_config_of_torch_is_launched() -> None:
    """Its class has none of elastic's own fields; those of other versions may lack more."""
    own = config(1)
    names = [name for name in vars(own) if name not in ("warm", "preload", "native")]
    theirs = types.SimpleNamespace(**{name: getattr(own, name) for name in names})
    assert elastic_launch(theirs, "/bin/true")() == {0: None}  # type: ignore[arg-type]


def test_a_program_returns_none_for_each_rank() -> None:
    assert elastic_launch(config(), "/bin/true")() == {0: None, 1: None}


@pytest.mark.smoke
@pytest.mark.parametrize(
    "how", [{}, {"start_method": "fork"}, {"preload": ["colorsys"]}], ids=["spawn", "fork", "warm"]
)
def test_the_childs_traceback_reaches_the_caller(
    how: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(**how), launch_functions.fail_on_rank_1)("no such data")
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    assert failure.message == "ValueError: no such data"
    # The file was in a directory that is removed; the failure has its content.
    assert failure.has_error_file()
    assert failure.error_file == "<N/A>"
    assert "in fail_on_rank_1" in failure.traceback
    assert "function_worker" not in failure.traceback
    assert "template" not in failure.traceback
    assert "ValueError: no such data" in str(caught.value)
    assert list(caught.value.failures) == [1]  # rank 0 was stopped, which is no failure
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.name, again.failures) == (caught.value.name, caught.value.failures)
    printed = capfd.readouterr().err
    assert "ValueError: no such data" in printed
    assert "executed" not in printed


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_restarted_functions_return_the_values_of_the_last_round(method: str) -> None:
    spec = config(max_restarts=1, start_method=method)
    assert elastic_launch(spec, launch_functions.fail_in_round_0)() == {0: "1", 1: "1"}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_an_interrupted_function_has_failed(method: str) -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(1, start_method=method), launch_functions.interrupt_itself)()
    assert caught.value.failures[0].shell_code == 130


def test_system_exit_with_0_returns_none_and_other_codes_fail() -> None:
    assert elastic_launch(config(1), launch_functions.exit_with)(0) == {0: None}
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(1), launch_functions.exit_with)(7)
    assert caught.value.get_first_failure()[1].exitcode == 7


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_queues_locks_and_events_of_the_context_are_passed(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue, lock, event = context.Queue(), context.Lock(), context.Event()
    received = []

    def answer() -> None:
        received.extend([queue.get(timeout=DEADLINE_S), queue.get(timeout=DEADLINE_S)])
        event.set()

    reader = threading.Thread(target=answer)
    reader.start()
    got = elastic_launch(config(start_method=method), launch_functions.send_and_wait)(
        queue, lock, event
    )
    reader.join()
    assert got == {0: True, 1: True}
    assert sorted(received) == [0, 1]


def test_closures_and_lambdas_are_called_by_value() -> None:
    pytest.importorskip("cloudpickle")
    added = 5
    assert elastic_launch(config(), lambda value: value + added)(3) == {0: 8, 1: 8}


@pytest.mark.parametrize("how", [{}, {"preload": ["colorsys"]}], ids=["spawn", "warm"])
def test_closures_can_use_queues_of_the_spawn_context(how: dict[str, Any]) -> None:
    pytest.importorskip("cloudpickle")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    call = elastic_launch(config(2, **how), lambda: queue.put("colorsys" in sys.modules))
    assert call() == {0: None, 1: None}
    assert [queue.get(), queue.get()] == ["preload" in how] * 2


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (lambda: threading.Lock(), "cannot pickle '_thread.lock' object"),
        (lambda: multiprocessing.get_context("spawn").Pipe()[0], r"use .*Pipe\(duplex=False\)"),
    ],
)
def test_what_cannot_be_pickled_is_one_error_before_anything_starts(
    argument: Any, reason: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"rank_and and its arguments cannot be pickled: .*{reason}"
    ):
        elastic_launch(config(), launch_functions.rank_and)(argument())


@pytest.mark.parametrize("kind", ["Lock", "Event", "Queue", "SimpleQueue"])
def test_objects_of_the_fork_context_are_refused_by_new_interpreters(kind: str) -> None:
    argument = getattr(multiprocessing.get_context("fork"), kind)()
    with pytest.raises(ConfigError) as caught:
        elastic_launch(config(), launch_functions.rank_and)(argument)
    assert "rank_and is passed a lock, event or queue that was created in a fork" in str(
        caught.value
    )
    assert "multiprocessing.get_context('spawn'), or use start_method='fork'" in str(caught.value)


def forked() -> tuple[LaunchConfig, Any]:
    """A config and a lock, because of which the workers are copies of this process."""
    return config(start_method="fork"), multiprocessing.get_context("fork").Lock()


def test_copies_of_this_process_increment_under_a_lock() -> None:
    spec, lock = forked()
    counter = multiprocessing.get_context("fork").RawValue("i", 0)
    secret = object()  # which cannot be pickled to something equal

    def increment(lock: Any, given: object) -> bool:
        for _ in range(1000):
            with lock:
                counter.value += 1
        return given is secret

    assert elastic_launch(spec, increment)(lock, secret) == {0: True, 1: True}
    assert counter.value == 2000


def test_copies_of_this_process_have_its_changed_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_functions, "rank_and", lambda *given: ("changed", *given))

    def call(given: str) -> Any:
        return launch_functions.rank_and(given)

    # Nothing of this call needs a fork, but the program asked for one.
    assert elastic_launch(config(start_method="fork"), call)("x") == {
        rank: ("changed", "x") for rank in range(2)
    }


FORKED_NODE = """
import multiprocessing, os, sys
from elastic.launcher import LaunchConfig, elastic_launch

def rank(lock):
    with lock:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

config = LaunchConfig(2, 2, 2, run_id="forked", rdzv_backend="c10d", rdzv_endpoint=sys.argv[1],
                      start_method="fork", max_restarts=0)
print(elastic_launch(config, rank)(multiprocessing.get_context("fork").Lock()))
"""


def test_two_nodes_of_forked_copies_return_their_own_ranks(tmp_path: Path) -> None:
    script = tmp_path / "forked_node.py"
    script.write_text(FORKED_NODE)
    command = [sys.executable, str(script), f"127.0.0.1:{free_port()}"]
    nodes = together(*[functools.partial(run_program, command, check=True)] * 2)
    printed = sorted(node.stdout for node in nodes)
    assert printed == ["{0: (0, 4), 1: (1, 4)}\n", "{2: (2, 4), 3: (3, 4)}\n"]


WAITING = """
import multiprocessing, os, signal, sys
from elastic.launcher import LaunchConfig, elastic_launch
from elastic.multiprocessing import SignalException

def wait(lock):
    os.write(1, b"ready\\n")
    signal.pause()

if __name__ == "__main__":
    method, number = sys.argv[1], int(sys.argv[2])
    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
                          start_method=method, max_restarts=0)
    before = signal.getsignal(number)
    try:
        elastic_launch(config, wait)(multiprocessing.get_context(method).Lock())
    except SignalException as error:
        print(error.sigval.name, signal.getsignal(number) is before, flush=True)
"""


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("spawn", signal.SIGTERM),
        ("fork", signal.SIGTERM),
        ("fork", signal.SIGINT),
        ("fork", signal.SIGKILL),
    ],
)
def test_a_signal_stops_the_functions_and_is_raised(
    method: str, number: signal.Signals, tmp_path: Path
) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    with started([sys.executable, str(script), method, str(int(number))]) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert (stdout, process.returncode) == (f"{number.name} True\n", 0), stderr
    # Copies have no guardian: the next agent removes what a killed one has left.
    assert elastic_launch(config(1), launch_functions.exit_with)(0) == {0: None}


def test_functions_are_called_in_forked_workers() -> None:
    spec = config(2, preload=["colorsys"], max_restarts=1)
    assert elastic_launch(spec, launch_functions.how_it_started)(1) == {
        rank: ("forked", f"elastic-{rank}", 1) for rank in range(2)
    }


def test_forked_workers_are_refused_for_other_programs() -> None:
    with pytest.warns(UserWarning, match=r"no effect: the command .* is not PYTHON \[-u\] SCRIPT"):
        assert elastic_launch(config(1, warm=True), "/bin/true")() == {0: None}
    with pytest.raises(ConfigError, match=r"LaunchConfig\.preload: 'a b' is not the name"):
        elastic_launch(config(1, preload=["a b"]), launch_functions.rank_and)()


def test_scripts_are_run_in_forked_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nopen(sys.argv[1], 'w').write(str('colorsys' in sys.modules))\n")
    launched = elastic_launch(config(2, preload=["colorsys"]), sys.executable)
    launched("-u", str(script), str(tmp_path / "found.${local_rank}"))
    assert [(tmp_path / f"found.{rank}").read_text() for rank in range(2)] == ["True", "True"]


def test_a_node_without_a_failure_of_its_own_raises_the_jobs_error() -> None:
    port = free_port()
    alone = config(1, rdzv_endpoint=f"127.0.0.1:{port}", rdzv_configs={"join_timeout": "0.2"})
    alone.min_nodes = alone.max_nodes = 2
    with pytest.raises(LaunchError) as caught:
        elastic_launch(alone, launch_functions.rank_and)()
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("settings", [{"no_such_key": 1}, {"join_timeout": "soon"}])
def test_the_settings_of_a_job_of_one_node_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no_such_key|join_timeout is 'soon'"):
        elastic_launch(config(1, rdzv_configs=settings), launch_functions.rank_and)()


def test_the_error_has_the_name_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("raise SystemExit(3)")
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(config(1), sys.executable)("-u", str(script))
    assert caught.value.name == str(script)


def test_an_unknown_event_handler_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no event handler 'zz'"):
        elastic_launch(config(1, event_log_handler="zz"), "/bin/true")()


def test_a_file_keeps_the_record_of_a_job_of_one_node(tmp_path: Path) -> None:
    record = tmp_path / "record"
    settings = {"store_type": "file"}
    got = elastic_launch(config(rdzv_endpoint=str(record), rdzv_configs=settings), "/bin/true")()
    assert got == {0: None, 1: None}
    assert (tmp_path / "record.functions").exists()


def test_output_goes_to_the_files_of_logs_specs(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.OUT)
    elastic_launch(config(logs_specs=specs), "/bin/echo")("hello ${local_rank}")
    files = {path.parent.name: path.read_text() for path in tmp_path.rglob("stdout.log")}
    assert files == {"0": "hello 0\n", "1": "hello 1\n"}


def test_without_a_directory_the_output_stays_on_the_console(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    specs = DefaultLogsSpecs(os.devnull, redirects=Std.OUT, tee=Std.ERR)
    elastic_launch(config(1, logs_specs=specs), "/bin/echo")("hello")
    assert capfd.readouterr().out == "hello\n"
    texts = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert texts == ["the log directory is /dev/null: redirects and tee have no effect"]


def test_an_empty_filter_of_ranks_shows_all(capfd: pytest.CaptureFixture[str]) -> None:
    specs = DefaultLogsSpecs(local_ranks_filter=set())
    elastic_launch(config(logs_specs=specs), "/bin/echo")("hello")
    assert capfd.readouterr().out == "hello\nhello\n"


PROGRAM = """
import os, sys
from elastic.launcher import LaunchConfig, elastic_launch

def square(value):
    return value * value + int(os.environ["RANK"])

config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
if sys.argv[-1] == "forked":
    config.preload = ["colorsys"]
    assert __name__ == "__main__" or "colorsys" in sys.modules
if __name__ == "__main__":
    print(elastic_launch(config, square)(3))
"""


@pytest.mark.parametrize("how", ["stdin", "-c", "file", "forked"])
def test_functions_of_main_are_launched_from_a_file_and_without_one(
    how: str, tmp_path: Path
) -> None:
    if how in ("stdin", "-c"):
        pytest.importorskip("cloudpickle")
    script = tmp_path / "main_script.py"
    script.write_text(PROGRAM)
    words = {"stdin": ["-"], "-c": ["-c", PROGRAM]}.get(how, [str(script), how])
    done = run_program([sys.executable, *words], input=PROGRAM if how == "stdin" else None)
    assert (done.stdout, done.returncode) == ("{0: 9, 1: 10}\n", 0), done.stderr


OTHER_SIGNAL = """
import os
from elastic.launcher import LaunchConfig, elastic_launch

config = LaunchConfig(1, 1, 1, rdzv_backend="c10d", signals_to_handle="SIGUSR1")
elastic_launch(config, "/bin/sh")("-c", f"kill -TERM {os.getpid()}; exec sleep 1000")
"""


def test_no_other_signals_are_handled_than_those_of_the_launcher() -> None:
    done = run_program([sys.executable, "-c", OTHER_SIGNAL])
    assert done.returncode == -signal.SIGTERM, done.stderr


def test_record_passes_the_childs_error_to_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastic.multiprocessing.errors import record

    path = tmp_path / "mine.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(ChildFailedError):
        record(elastic_launch(config(), launch_functions.fail_on_rank_1))("why")
    message = json.loads(path.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: why", 1)


def test_record_writes_nothing_for_a_child_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastic.multiprocessing.errors import record

    path = tmp_path / "mine.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(ChildFailedError, match=r"exitcode  : -9 \(SIGKILL\) \(pid: "):
        record(elastic_launch(config(1), "/bin/sh"))("-c", "kill -KILL $$")
    assert not path.exists()


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert elastic_launch(config(1), "/bin/sh")("-c", "kill -HUP $$") == {0: None}
    finally:
        signal.signal(signal.SIGHUP, before)
