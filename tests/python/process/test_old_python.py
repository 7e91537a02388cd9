"""Interpreters without os.memfd_create, os.pidfd_open and signal.pidfd_send_signal."""

from __future__ import annotations

import sys
from pathlib import Path

import elastic
import pytest

from support.launching import clean_environment, launch, python_path, run_program
from support.paths import ROOT
from support.warm_modules import SCRIPT, lines_of

OLD = ROOT / "tests" / "python" / "support" / "old_python"


@pytest.fixture
def environ() -> dict[str, str]:
    return clean_environment(PYTHONPATH=python_path(OLD, Path(elastic.__file__).parents[1]))


def test_warm_workers_are_forked(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = launch(
        "--standalone", "--nproc-per-node=2", "--preload=colorsys", str(tmp_path / "script.py"),
        environ=environ,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert lines_of(done) == [f"forked rank {rank} round 0" for rank in range(2)]


def test_a_script_from_standard_input_runs(environ: dict[str, str]) -> None:
    done = run_program(
        [sys.executable, "-m", "elastic", "--standalone", "--nproc-per-node=2", "-"],
        input="import os, sys; sys.stdout.write(f\"rank {os.environ['RANK']}\\n\")",
        environ=environ,
        check=True,
    )
    assert sorted(done.stdout.split("\n")) == ["", "rank 0", "rank 1"]


PROGRAMS = {
    "file timer": (
        "import os, subprocess, sys, time\n"
        "from elastic import timer\n"
        "assert not hasattr(os, 'pidfd_open')\n"
        "worker = subprocess.Popen(['sleep', '600'])\n"
        "server = timer.FileTimerServer('pipe', 'job')\n"
        "server.start()\n"
        "request = timer.FileTimerRequest(worker.pid, 'x', time.time(), 9)\n"
        "timer.FileTimerClient('pipe')._send_request(request)\n"
        "assert worker.wait() == -9\n"
        "server.stop()\n"
    ),
    "start_processes": (
        "from elastic.multiprocessing import DefaultLogsSpecs, start_processes\n"
        "context = start_processes('x', 'true', {0: ()}, {0: {}}, DefaultLogsSpecs())\n"
        "assert not context.wait().is_failed()\n"
        "context.close()\n"
    ),
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_program_works(source: str, environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(source)
    run_program([sys.executable, "program.py"], environ=environ, cwd=tmp_path, check=True)
