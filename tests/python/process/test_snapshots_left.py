"""What a job with snapshots leaves after its normal end: nothing, also where a program goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.launching import clean_environment, free_endpoint, launch, run_program

# One rank is killed in the first round. With two nodes each rank waits until its agent has files of
# snapshots: its own, and the copy of the other node's.
TRAINING = """
import os, signal, sys, time
from elastic import worker
from elastic.worker import snapshot

def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

def files(pid):
    found = []
    for one in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{one}"))
        except OSError:
            continue  # closed meanwhile
    return sum("elastic-snapshot" in one for one in found)

def await_all(name):
    open(f"{sys.argv[1]}/{name}.{rank}", "w").close()
    while not all(os.path.exists(f"{sys.argv[1]}/{name}.{one}") for one in range(world)):
        time.sleep(0.005)

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
job, count = os.environ["TORCHELASTIC_RUN_ID"], worker.round()
saved = snapshot.restore()
assert (saved and saved.step) == (None if count == 0 else 2), saved
for step in (1, 2) if count == 0 else (3, 4):
    assert snapshot.save(step, [bytes(1 << 20)])
guardian = os.getppid()
assert files(guardian) >= 2
agent = parent(guardian)
while os.environ["NODES"] == "2" and files(agent) < 2:
    time.sleep(0.005)
await_all(f"{job}.{count}")
if count == 0:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
"""

EMBEDDING = """
import json, os, subprocess, sys
from elastic.launcher import LaunchConfig, elastic_launch, launch_agent

endpoint, *program = sys.argv[1:]
nodes = int(os.environ["NODES"])

def descriptors():
    return sorted(os.listdir("/proc/self/fd"), key=int)

def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read()

def run(call, name):
    config = LaunchConfig(nodes, nodes, 3 - nodes, run_id=name, rdzv_backend="c10d",
                          rdzv_endpoint=endpoint, max_restarts=1)
    command = [sys.executable, "-m", "elastic", f"--nnodes={nodes}", "--nproc-per-node=1",
               "--rdzv-backend=c10d", f"--rdzv-id={name}", f"--rdzv-endpoint={endpoint}",
               "--max-restarts=1", "--rdzv-conf=is_host=false", *program]
    other = subprocess.Popen(command) if nodes == 2 else None
    call(config)
    assert other is None or other.wait() == 0

found = []
for name, call in (
    ("first", lambda config: elastic_launch(config, sys.executable)(*program)),
    ("second", lambda config: launch_agent(config, sys.executable, program)),
    ("third", lambda config: elastic_launch(config, sys.executable)(*program)),
):
    before = descriptors()
    run(call, name)
    assert children() == "", children()
    found.append([before, descriptors()])
    maps = open("/proc/self/maps").read()
    assert "elastic-snapshot" not in maps, maps
print(json.dumps(found))
"""


def written(tmp_path: Path) -> tuple[str, str, Path]:
    training, embedding, left = (tmp_path / name for name in ("train.py", "embed.py", "left"))
    training.write_text(TRAINING)
    embedding.write_text(EMBEDDING)
    left.mkdir()
    return str(training), str(embedding), left


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_program_that_launches_again_and_again_keeps_no_descriptor(
    tmp_path: Path, nodes: str
) -> None:
    training, embedding, left = written(tmp_path)
    command = [sys.executable, embedding, free_endpoint(), training, str(tmp_path)]
    environ = clean_environment(NODES=nodes, TMPDIR=str(left))
    done = run_program(command, environ=environ)  # and no process
    assert done.returncode == 0, done.stderr
    for before, after in json.loads(done.stdout.splitlines()[-1]):
        assert before == after
    assert list(left.iterdir()) == []


def test_the_command_leaves_no_file(tmp_path: Path) -> None:
    training, _, left = written(tmp_path)
    environ = clean_environment(NODES="1", TMPDIR=str(left))
    done = launch(
        *("--nproc-per-node=2", "--max-restarts=1", "--restart-backoff=0"),
        *(training, str(tmp_path)),
        environ=environ,
    )
    assert done.returncode == 0, done.stderr
    assert list(left.iterdir()) == []
