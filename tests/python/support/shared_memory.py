"""Jobs that see a /dev/shm and a directory for temporary files of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.launching import (
    assert_all_ended,
    clean_environment,
    launcher_command,
    python_path,
    started,
)
from support.paths import STUBS

STUB = STUBS / "stub_shm_user.py"
WAYS = ("0", "raise", "_exit", "kill", "stop", "restart", "agent")
CODES = {"0": 0, "raise": 1, "_exit": 3, "kill": 137, "stop": 143, "restart": 0, "agent": -9}
PROGRAMS = {
    "functions": """
import sys
from elastic.launcher import LaunchConfig, elastic_launch
from elastic.multiprocessing import SignalException
from elastic.multiprocessing.errors import ChildFailedError
from stub_shm_user import run
if __name__ == "__main__":
    kind, way, restarts = sys.argv[1:]
    config = LaunchConfig(
        1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=int(restarts)
    )
    try:
        elastic_launch(config, run)(kind, way)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        sys.exit(code if code >= 0 else 128 - code)
    except SignalException as stopped:
        sys.exit(128 + stopped.sigval)
""",
    "processes": """
import sys
from elastic.multiprocessing import DefaultLogsSpecs, start_processes
from stub_shm_user import run
if __name__ == "__main__":
    args = {rank: tuple(sys.argv[1:3]) for rank in (0, 1)}
    environ = {
        rank: {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0"}
        for rank in args
    }
    context = start_processes("run", run, args, environ, DefaultLogsSpecs())
    sys.exit(max((one.exitcode for one in context.wait().failures.values()), default=0))
""",
}


def has_mount_namespaces() -> bool:
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return done.returncode == 0


def files_left(folder: Path, kind: str, way: str, mode: str) -> list[str]:
    """Runs a job to its end: what it has left in /dev/shm and in TMPDIR."""
    if not has_mount_namespaces():
        pytest.skip("no mount namespace can be made here")
    shm = folder / "shm"
    shm.mkdir()
    temporary = Path(tempfile.mkdtemp(prefix="e"))  # short, for the address of a socket
    try:
        return _run_in(folder, shm, temporary, kind, way, mode)
    finally:
        shutil.rmtree(temporary)


def _run_in(folder: Path, shm: Path, temporary: Path, kind: str, way: str, mode: str) -> list[str]:
    ready = folder / "ready"
    ready.mkdir()
    environ = clean_environment(
        TMPDIR=str(temporary),
        PYTHONPATH=python_path(STUBS),
        STUB_READY_FOLDER=str(ready),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"),
    )
    restarts = 1 if way == "restart" else 0
    run_python = f'"{sys.executable}" "$@"'
    program = {
        "script": [str(STUB), kind, way],
        "warm": ["--warm", str(STUB), kind, way],
        "wrapper": [
            "--no-python",
            "sh",
            "-c",
            f"{run_python}; exit $?",
            "sh",
            str(STUB),
            kind,
            way,
        ],
    }
    if mode in PROGRAMS:
        job = folder / "job.py"
        job.write_text(PROGRAMS[mode])
        command = [sys.executable, str(job), kind, way, str(restarts)]
    else:
        options = ["--nproc-per-node=2", f"--max-restarts={restarts}", "--shutdown-timeout=5"]
        command = launcher_command(*options, *program[mode])
    bind = f'mount --bind "{shm}" /dev/shm && exec "$@"'
    with started(["unshare", "--mount", "sh", "-c", bind, "sh", *command], environ=environ) as job:
        if way in ("stop", "agent"):
            for _ in range(2):
                assert job.stdout.readline() == "ready\n"
            job.terminate() if way == "stop" else job.kill()
        _, stderr = job.communicate(timeout=100.0)
    assert job.returncode == CODES[way], stderr
    assert_all_ended(environ, deadline_s=60.0)
    return sorted(os.listdir(shm)) + sorted(os.listdir(temporary))
