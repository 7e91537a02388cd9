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
FUNCTIONS = f"""
import sys
import tempfile
from elastic.launcher import LaunchConfig, elastic_launch
sys.path.insert(0, {str(STUBS)!r})
from stub_shm_user import run
if __name__ == "__main__":
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=int(sys.argv[3]))
    elastic_launch(config, run)(*sys.argv[1:3])
"""


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
    if mode == "functions":
        job = folder / "job.py"
        job.write_text(FUNCTIONS)
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
