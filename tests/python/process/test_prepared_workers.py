"""Workers that are started before their node joins (``--inplace-prepare``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.launching import Job, Process, free_endpoint, job_at

# Says what it knows before its first round, waits for it, and ends when the file "end" exists.
SCRIPT = """
import os, sys, time
from pathlib import Path
from elastic import worker

folder = Path(sys.argv[1])
members = worker.membership()
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "ELASTIC_ROUND")
known = [name for name in names if name in os.environ]
print(os.getpid(), "begins with", known, "local rank", os.environ["LOCAL_RANK"], flush=True)
if members.awaits_round and "ENDS" in os.environ:
    sys.exit(int(os.environ["ENDS"]))
while members.awaits_round and "HOLDS" in os.environ and not (folder / "go").exists():
    time.sleep(0.01)
if members.awaits_round:
    members.next_round()
while True:
    rank = os.environ["RANK"] + " of " + os.environ["WORLD_SIZE"]
    print(os.getpid(), "round", members.round, "rank", rank, members.kept, flush=True)
    while not members.is_over() and not (folder / "end").exists():
        time.sleep(0.01)
    if not members.is_over():
        break
    members.next_round()
"""


@contextmanager
def prepared(tmp_path: Path, nnodes: str, *words: str) -> Iterator[Job]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ("--on-membership-change=inplace", "--inplace-prepare=600", "--shutdown-timeout=5",
               "--rdzv-conf=last_call_timeout=0,settle=0", *words)  # fmt: skip
    with job_at(free_endpoint(), nnodes, [str(script), str(tmp_path)], *options) as nodes:
        yield nodes


def next_line(node: Process) -> tuple[str, str]:
    """The process of the worker, and what it says."""
    assert node.stdout is not None
    line = node.stdout.readline()
    found = re.search(r"(\d+) ((begins|round) .*)", line)
    assert found is not None, (line, node.communicate()[1])
    return found[1], found[2]


def test_a_node_joins_when_its_workers_wait(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with prepared(tmp_path, "1:2", f"--log-dir={logs}", "--tee=3") as nodes:
        first = nodes.start()
        pid, text = next_line(first)
        assert text == "begins with [] local rank 0"
        assert next_line(first) == (pid, "round 0 rank 0 of 1 False")
        second = nodes.start(HOLDS="1")
        new, text = next_line(second)
        assert text == "begins with [] local rank 0"
        (tmp_path / "go").touch()
        assert next_line(first) == (pid, "round 1 rank 0 of 2 True"), "it is kept"
        assert next_line(second) == (new, "round 1 rank 1 of 2 False")
        (tmp_path / "end").touch()
        nodes.succeed()
    assert len([*logs.glob("job_*/prepared/0/stdout.log")]) == 2
    assert not [*logs.glob("job_*/attempt_*")]


@pytest.mark.parametrize(
    ("words", "variables", "reason"),
    [
        ((), {"ENDS": "3"}, "the worker of local rank 0 exited with code 3 before this node"),
        (("--inplace-prepare=0.5",), {"HOLDS": "1"}, "the workers did not wait for their round"),
    ],
    ids=["ends", "too late"],
)
def test_workers_that_do_not_wait_start_with_the_round(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], reason: str
) -> None:
    with prepared(tmp_path, "1:2", *words) as nodes:
        node = nodes.start(**variables)
        pid, text = next_line(node)
        if text == "begins with [] local rank 0":  # on a slow host it is stopped before that
            again, text = next_line(node)
            assert again != pid
            pid = again
        assert text.startswith("begins with ['RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'ELASTIC_ROUND']")
        assert next_line(node) == (pid, "round 0 rank 0 of 1 False")
        (tmp_path / "end").touch()
        (done,) = nodes.succeed()
    assert done.stderr.count(reason) == 1, done.stderr
    assert "the workers are started again with the round" in done.stderr
