"""Processes of ``start_processes`` on systems and in programs that lack something."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elastic import _C, ConfigError, LocalElasticAgent, WorkerSpec
from elastic.agent.server.native_elastic_agent import NativeElasticAgent
from elastic.cli.output import make_temporary_directory
from elastic.multiprocessing import DefaultLogsSpecs, start_processes
from elastic.multiprocessing.tail_log import TailLog


def test_programs_run_where_the_kernel_has_no_pidfds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    context = start_processes(
        "x", "/bin/sh", {0: ("-c", "exit 3")}, {0: {}}, DefaultLogsSpecs(str(tmp_path))
    )
    result = context.wait()
    assert result is not None and result.failures[0].exitcode == 3


def test_a_later_call_returns_the_same_result(tmp_path: Path) -> None:
    """The process that was stopped because the other one failed is no failure of that call."""
    args = {0: ("-c", "exit 3"), 1: ("-c", "exec sleep 600")}
    context = start_processes("x", "/bin/sh", args, {0: {}, 1: {}}, DefaultLogsSpecs(str(tmp_path)))
    for _ in range(2):
        result = context.wait()
        assert result is not None and list(result.failures) == [0]


def test_a_tail_that_is_never_stopped_does_not_keep_the_program(tmp_path: Path) -> None:
    code = "from elastic.multiprocessing.tail_log import TailLog; import sys; "
    code += f"TailLog('x', {{0: {str(tmp_path / 'never')!r}}}, sys.stdout).start()"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


def test_a_tail_whose_destination_fails_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").write_text("line\n")
    closed = (tmp_path / "out").open("w")
    closed.close()
    tail = TailLog("x", {0: str(tmp_path / "log")}, closed).start()
    tail.stop()
    assert "cannot copy the output of x" in caplog.text
    assert tail.stopped()


@pytest.mark.parametrize("killed_by_us", [True, False])
def test_only_a_kill_of_ours_is_called_one(
    killed_by_us: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = NativeElasticAgent(WorkerSpec("role", 1, entrypoint="/bin/true"))
    ended: Any = SimpleNamespace(
        stopped_by_us=True, signal=signal.SIGKILL, killed_by_us=killed_by_us, describe=str
    )
    kind = _C.AgentEvent.Kind.WORKER_EXITED
    event: Any = SimpleNamespace(
        kind=kind, state=_C.AgentState.HEALTHY, local_rank=0, exit=ended, check=None
    )
    agent._observe(event)
    with caplog.at_level(25):
        agent._note_killed()
    assert ("killed by SIGKILL" in caplog.text) == killed_by_us


def test_a_spare_that_never_ran_says_so(caplog: pytest.LogCaptureFixture) -> None:
    agent = NativeElasticAgent(WorkerSpec("role", 1, entrypoint="/bin/true", run_id="7"))
    kind, state = _C.AgentEvent.Kind.FINISHED, _C.AgentState.SUCCEEDED
    event: Any = SimpleNamespace(kind=kind, state=state, message="", check=None)
    agent._observe(event)
    assert "the job 7 has succeeded, but no worker ran on this node" in caplog.text


def test_the_directory_for_temporary_files_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    with pytest.raises(ConfigError, match="cannot make the directory for temporary files"):
        make_temporary_directory(60.0)


def test_an_entry_point_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="the entry point is of type int"):
        LocalElasticAgent(WorkerSpec("role", 1, entrypoint=5))  # type: ignore[arg-type]
