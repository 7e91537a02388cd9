"""elastic.worker.membership() in real processes; the tests act as the launcher."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.channels import MemberWorker, alone, run_script

Start = Callable[..., MemberWorker]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start(script: str, **variables: str) -> MemberWorker:
        path = tmp_path / "script.py"
        path.write_text("from elastic import worker\njob = worker.membership()\n" + script)
        return MemberWorker(path, **variables)

    return start


def test_a_process_takes_part_in_the_next_round(start: Start) -> None:
    script = """
import os
assert worker.membership() is job and job.supported and not job.kept and job.round == 0
print("ready", flush=True)
while not job.wait_until_over(1):
    pass
assert job.is_over()
assert worker.round() == 0 and not worker.is_restart()
for _ in range(2):
    found = job.next_round()
    print(found, flush=True)
    assert job.round == worker.round() == found.round and not job.is_over()
print(job.kept, worker.is_restart(), os.environ["OF_THE_USER"], os.environ["RANK"])
"""
    with start(script, RANK="5", MASTER_ADDR="a", OF_THE_USER="u") as worker:
        worker.wait_for(b"m")
        assert worker.next_line() == "ready"
        worker.cut(0)
        worker.wait_for(b"x")
        assert worker.left_round() == 0
        variables = {
            "RANK": 1, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 1,
            "MASTER_ADDR": "h\u00e9", "MASTER_PORT": 29500,
            "ELASTIC_MEMBERSHIP_CHANGE": "node lost",
        }  # fmt: skip
        worker.give(1, **variables)
        assert worker.next_line() == (
            "Round(round=1, rank=1, world_size=3, local_rank=0, local_world_size=2, group_rank=1, "
            "master_addr='h\u00e9', master_port=29500, reason='node lost')"
        )
        worker.wait_for(b"x")  # it asks for the next one without a cut
        worker.give(2, RANK=0, MASTER_ADDR="")
        assert "round=2, rank=0, world_size=3" in worker.next_line()
        assert worker.output() == "True True u 0\n"


def test_a_wait_ends_with_its_timeout_a_signal_or_the_launcher(start: Start) -> None:
    script = """
import signal
try:
    job.next_round(timeout=0.01)
except TimeoutError as error:
    print(error)
def handle(number, frame):
    raise KeyError(number)
signal.signal(signal.SIGUSR1, handle)
for timeout in (None, 3600):
    try:
        print("waiting", flush=True)
        job.next_round(timeout)
    except (KeyError, RuntimeError) as error:
        print(type(error).__name__, flush=True)
"""
    with start(script) as worker:
        assert worker.next_line() == "the next round has not begun within 0.01 s"
        assert worker.next_line() == "waiting"
        worker.process.send_signal(signal.SIGUSR1)
        assert [worker.next_line(), worker.next_line()] == ["KeyError", "waiting"]
        worker.socket.close()
        assert worker.output() == "RuntimeError\n"


def test_a_wait_lets_other_threads_run(start: Start) -> None:
    script = """
import threading
def other():
    job.leave()
    print("runs", flush=True)
thread = threading.Thread(target=other)
timer = threading.Timer(0, thread.start)
timer.start()
print(job.next_round(3600).round)
"""
    with start(script) as worker:
        assert worker.next_line() == "runs"
        worker.give(1)
        assert worker.output() == "1\n"


@pytest.mark.parametrize("timeout", ["-1", "float('nan')"])
def test_invalid_timeouts_are_rejected(start: Start, timeout: str) -> None:
    with start(f"try: job.next_round({timeout})\nexcept ValueError: print('rejected')") as worker:
        assert worker.output() == "rejected\n"


WITHOUT = """
job = worker.membership()
with job.sockets():
    job.leave()
assert not job.wait_until_over(0)
print(job.supported, job.is_over(), job.kept, job.round)
try:
    job.next_round()
except RuntimeError as error:
    print("--on-membership-change=inplace" in str(error))
"""


def test_every_call_works_without_a_launcher() -> None:
    expected = "False False False 0\nTrue\n"
    for variables in ({}, {"ELASTIC_ON_MEMBERSHIP_CHANGE": "inplace"}):
        assert alone("from elastic import worker\n" + WITHOUT, **variables) == expected
    absent = "import sys\nsys.modules['elastic._worker'] = None\nfrom elastic import worker\n"
    assert alone(absent + WITHOUT) == expected


def test_a_job_that_restarts_on_changes_starts_no_thread(tmp_path: Path) -> None:
    script = WITHOUT + "import os\nprint(len(os.listdir('/proc/self/task')))\n"
    assert run_script(tmp_path, script) == "False False False 0\nTrue\n1\n"
