"""Snapshots within real limits of memory: a control group, a small /dev/shm."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.launching import launcher_command, run_program

MEMORY = Path("/sys/fs/cgroup/memory")
# The state's size in MiB; then how round 0 ends: the signal of a kill, or the MiB that it touches.
SCRIPT = """
import mmap, os, sys, time
from elastic import worker
from elastic.worker import snapshot

size, end = int(sys.argv[1]) << 20, sys.argv[2]
saved = snapshot.restore()
print(worker.round(), "from", saved and saved.step, flush=True)
state = mmap.mmap(-1, size)
print(worker.round(), "saved", snapshot.save(1, [state]) and snapshot.save(2, [state]), flush=True)
if worker.round() == 0 and end == "kill":
    os.kill(os.getpid(), 9)
if worker.round() == 0 and end != "ends":
    more = mmap.mmap(-1, int(end) << 20)
    for at in range(0, len(more), 4096):
        more[at] = 1
"""
OPTIONS = ("--standalone", "--nproc-per-node=1", "--max-restarts=1", "--restart-backoff=0")


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with 300 MiB of memory."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("the memory controller of cgroup v1 is not mounted")
    made = MEMORY / f"elastic-test-{uuid.uuid4().hex}"
    try:
        made.mkdir()
        (made / "memory.limit_in_bytes").write_text("300M")
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield made
    made.rmdir()


def run_in(group: Path, tmp_path: Path, *words: str) -> tuple[str, str]:
    path = tmp_path / "save.py"
    path.write_text(SCRIPT)
    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    done = run_program(
        ["sh", "-c", enter, "sh", *launcher_command(*OPTIONS, str(path), *words)], timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_state_that_the_control_group_has_no_room_for_is_refused(
    group: Path, tmp_path: Path
) -> None:
    stdout, stderr = run_in(group, tmp_path, "140", "ends")
    assert "0 saved False" in stdout
    assert "two snapshots of 140.0 MiB need more memory than the" in stderr
    assert "left of the control group's limit of 300.0 MiB" in stderr


def test_after_an_out_of_memory_kill_the_next_workers_have_the_memory(
    group: Path, tmp_path: Path
) -> None:
    stdout, stderr = run_in(group, tmp_path, "40", "400")
    assert stdout.splitlines() == ["0 from None", "0 saved True", "1 from None", "1 saved True"]
    assert "released: a worker was killed for lack of memory" in stderr
    assert "oom_kill 1" in (group / "memory.oom_control").read_text()


def test_snapshots_are_not_bound_by_the_size_of_dev_shm(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small /dev/shm")
    path = tmp_path / "save.py"
    path.write_text(SCRIPT)
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    command = launcher_command(*OPTIONS, str(path), "100", "kill")
    done = run_program(["unshare", "-m", "sh", "-c", mount, "sh", *command], timeout=100)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 from None", "0 saved True", "1 from 2", "1 saved True"]


# The limit counts for files of memory. The kernel's signal would end a process that is not of
# Python; tests/cpp/host/snapshot and support/installing.py have such ones.
def test_a_limit_of_file_sizes_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "save.py"
    path.write_text(SCRIPT)
    limit = 'ulimit -f 4096 && exec "$@"'  # blocks of 512 bytes
    command = ["sh", "-c", limit, "sh", *launcher_command(*OPTIONS, str(path))]
    done = run_program([*command, "4", "ends"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 from None", "0 saved False"]
    reason = "the snapshot is larger than this process may make a file (ulimit -f)"
    assert done.stderr.count(f"no snapshot was saved: {reason}") == 1
    done = run_program([*command, "1", "kill"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 from None", "0 saved True", "1 from 2", "1 saved True"]
