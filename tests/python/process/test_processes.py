"""Processes that a program starts with ``elastic.multiprocessing``, without an agent."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    ProcessFailure,
    RunProcsResult,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
    to_map,
)
from elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout
from elastic.multiprocessing.tail_log import TailLog

from support import launch_functions
from support.launching import DEADLINE_S, clean_environment, started


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Starting processes replaces this process's handlers."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ranks(count: int) -> dict[int, dict[str, str]]:
    return {rank: {"RANK": str(rank)} for rank in range(count)}


def finish(entrypoint: Any, *args: Any, specs: Any = None, **more: Any) -> RunProcsResult:
    context = start_processes(
        "test", entrypoint, dict.fromkeys(range(2), args), ranks(2), specs or DefaultLogsSpecs(),
        **more,
    )  # fmt: skip
    result = context.wait(DEADLINE_S)
    assert result is not None
    for pid in context.pids().values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    return result


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_return_values_by_local_rank(method: str) -> None:
    result = finish(launch_functions.rank_and, "a" * 1_000_000, start_method=method)
    assert result.return_values == {rank: (rank, "a" * 1_000_000) for rank in range(2)}
    assert not result.is_failed()


def test_a_failed_function_stops_the_others_which_are_not_failures() -> None:
    result = finish(launch_functions.fail_on_rank_1, "why")
    assert list(result.failures) == [1]
    assert (result.failures[1].exitcode, result.failures[1].message) == (1, "ValueError: why")
    assert result.is_failed()


def test_programs_return_none_and_write_their_files(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), redirects={0: Std.ALL, 1: Std.OUT})
    result = finish("/bin/sh", "-c", "echo out $RANK; echo err $RANK >&2", specs=specs)
    assert result.return_values == {0: None, 1: None}
    assert [Path(result.stdouts[rank]).read_text() for rank in range(2)] == ["out 0\n", "out 1\n"]
    assert Path(result.stderrs[0]).read_text() == "err 0\n"
    assert result.stderrs[1] == ""


def test_a_program_that_is_killed_fails_with_its_signal() -> None:
    result = finish("/bin/sh", "-c", "[ $RANK = 1 ] && kill -KILL $$; while :; do sleep 1; done")
    assert list(result.failures) == [1]
    assert (result.failures[1].exitcode, result.failures[1].signal_name()) == (-9, "SIGKILL")


def test_a_program_that_ignores_the_signal_is_killed_with_its_children(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    script = f"trap '' TERM; sleep 600 & echo $! > {ready}; wait"
    context = start_processes("t", "/bin/sh", {0: ("-c", script)}, {0: {}}, DefaultLogsSpecs())
    assert isinstance(context, SubprocessContext)
    child = os.pidfd_open(int(ready.read_text()))
    assert context.wait(0) is None
    context.close(signal.SIGTERM, timeout=0.1)
    assert context.subprocess_handlers[0].proc.returncode == -signal.SIGKILL
    assert select.select([child], [], [], DEADLINE_S)[0] == [child]  # it has ended, too
    os.close(child)


def test_an_end_between_the_check_and_the_wait_ends_the_wait() -> None:
    class Late(MultiprocessContext):
        def _awaited(self) -> list[Any]:
            if not self._answers:  # the value was received, so the process ends
                self._processes[0].join()
            awaited = super()._awaited()
            assert awaited, "nothing would end the wait"
            return awaited

    context = Late(
        "test", launch_functions.rank_and, {0: ()}, {0: {"RANK": "0"}}, "spawn", DefaultLogsSpecs()
    )
    context.start()
    assert context.wait(DEADLINE_S) is not None


def test_a_context_starts_once_and_checks_its_ranks() -> None:
    context = MultiprocessContext(
        "test", launch_functions.rank_and, {0: ()}, {0: {"RANK": "0"}}, "spawn", DefaultLogsSpecs()
    )
    context.start()
    with pytest.raises(ValueError, match="started already"):
        context.start()
    assert context.wait() is not None
    with pytest.raises(RuntimeError, match="envs has local ranks"):
        start_processes("test", "/bin/true", {0: ()}, {1: {}}, DefaultLogsSpecs())


def test_a_signal_raises_an_exception_where_processes_were_started() -> None:
    sleeper: Any = ({0: ("1000",)}, {0: {}}, DefaultLogsSpecs())
    context = start_processes("test", "/bin/sleep", *sleeper)
    with pytest.raises(SignalException) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.sigval is signal.SIGTERM
    context.close(caught.value.sigval)
    with pytest.raises(ProcessLookupError):
        os.kill(context.pids()[0], 0)


def test_the_signals_are_those_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1, SIGNONE")
    finish("/bin/true")
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(SignalException):
        signal.raise_signal(signal.SIGUSR1)
    assert "cannot handle SIGNONE" in caplog.text
    thread = threading.Thread(target=finish, args=("/bin/true",))
    thread.start()
    thread.join(DEADLINE_S)
    assert "outside the main thread" in caplog.text


def test_a_forked_worker_has_the_default_handlers() -> None:
    values = finish(signal.getsignal, signal.SIGTERM, start_method="fork").return_values
    assert values == dict.fromkeys(range(2), signal.SIG_DFL)


STARTING = """
import os, sys
from elastic.multiprocessing import DefaultLogsSpecs, start_processes
from support import launch_functions

if __name__ == "__main__":
    ranks = {0: {}, 1: {}}
    start_processes(
        "test", launch_functions.write_ready, dict.fromkeys(ranks, ()), ranks,
        DefaultLogsSpecs(sys.argv[1]), start_method=sys.argv[2],
    ).wait()
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_function_ends_with_the_killed_program_that_started_it(
    method: str, tmp_path: Path
) -> None:
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    environ = clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
    with started([sys.executable, str(script), str(tmp_path), method], environ=environ) as program:
        assert [program.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        program.kill()


@pytest.mark.parametrize("entrypoint", [launch_functions.rank_and, "/bin/true"])
def test_no_processes_succeed_at_once(entrypoint: Any) -> None:
    context = start_processes("test", entrypoint, {}, {}, DefaultLogsSpecs())
    result = context.wait(DEADLINE_S)
    assert result is not None
    assert (result.return_values, result.failures, context.pids()) == ({}, {}, {})


def test_teed_lines_reach_the_console_with_prefixes_and_filters_select_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT, local_ranks_filter={0})
    finish(
        "/bin/sh", "-c", "echo keep $RANK; echo other; printf end", specs=specs,
        log_line_prefixes={0: "<0>", 1: "<1>"}, duplicate_stdout_filters=["keep"],
    )  # fmt: skip
    assert capsys.readouterr().out == "<0>keep 0\n<0>other\n<0>end\n"
    [filtered] = tmp_path.rglob("filtered_stdout.log")
    assert filtered.read_text() == "<0>keep 0\n"


def test_the_paths_of_a_start_can_be_asked_for_before_it(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    named = specs.reify({0: {}})
    assert specs.reify({0: {}}).stdouts == named.stdouts
    paths = []
    for _ in range(2):
        context = start_processes(
            "t", "/bin/sh", {0: ("-c", "echo one; echo two")}, {0: {}}, specs,
            duplicate_stdout_filters=["two"],
        )  # fmt: skip
        assert context.wait() is not None
        paths.append(context.stdouts[0])
    assert paths[0] == named.stdouts[0] != paths[1]
    assert Path(named.stdouts[0]).read_text() == "one\ntwo\n"
    assert Path(named.filtered_stdout).read_text() == "[t0]:two\n"


def test_redirection_covers_descriptors_and_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with redirect_stdout(str(tmp_path / "out")), redirect_stderr(str(tmp_path / "err")):
        os.write(1, b"to the file\n")
        os.write(2, b"errors\n")
    os.write(1, b"after\n")
    assert (tmp_path / "out").read_text() == "to the file\n"
    assert (tmp_path / "err").read_text() == "errors\n"
    assert capfd.readouterr().out == "after\n"


def test_a_tail_ends_although_its_file_never_appears(tmp_path: Path) -> None:
    written = io.StringIO()
    tail = TailLog("t", {0: str(tmp_path / "missing")}, written).start()
    stopper = threading.Thread(target=tail.stop)
    stopper.start()
    stopper.join(DEADLINE_S)
    assert not stopper.is_alive()
    assert (written.getvalue(), tail.stopped()) == ("", True)


def test_one_value_becomes_a_map() -> None:
    assert to_map(Std.ALL, 2) == {0: Std.ALL, 1: Std.ALL}
    assert to_map({1: Std.OUT}, 2) == {0: Std.NONE, 1: Std.OUT}


def test_a_failure_is_made_as_in_torch(tmp_path: Path) -> None:
    failure = ProcessFailure(0, 7, -15, str(tmp_path / "none"))
    assert failure.signal_name() == "SIGTERM"
    assert failure.message == "Signal 15 (SIGTERM) received by PID 7"
    assert (failure.error_file, failure.has_error_file()) == ("<N/A>", False)
    assert failure.error_file_data == {"message": "<NONE>"}
    (tmp_path / "old").write_text('{"message": "bad", "timestamp": "10"}')
    old = ProcessFailure(0, 7, 1, str(tmp_path / "old"))
    assert (old.message, old.timestamp, old.error_file) == ("bad", 10, str(tmp_path / "old"))
    (tmp_path / "half").write_text('{"message": ')
    assert ProcessFailure(0, 7, 1, str(tmp_path / "half")).message == "process 7 exited with code 1"
