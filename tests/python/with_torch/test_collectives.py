"""Which rank the others wait for in a collective operation, with a plain script and gloo."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from support.collective_scenes import SCRIPT, WAITS, check_early, check_scene
from support.launching import await_line, launch, launched


@pytest.mark.parametrize("name", ["not-entered", "order"])
def test_the_report_of_a_hang_names_the_cause(name: str, tmp_path: Path) -> None:
    check_scene(name, tmp_path)


def test_a_plain_start_names_the_rank_that_is_stopped(tmp_path: Path) -> None:
    check_early("stopped", tmp_path)


WAIT_FOR_FILE = """
while rank == 1 and not os.path.exists("go"):
    time.sleep(0.1)
dist.all_reduce(ones)
print("done")
"""


def test_a_plain_start_logs_the_wait_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + WAIT_FOR_FILE + "time.sleep(15)\n")
    events = tmp_path / "events"
    options = ("--standalone", "--nproc-per-node=3", f"--event-log={events}")
    with launched(*options, str(tmp_path / "train.py"), cwd=tmp_path) as job:
        await_line(job, WAITS + r"; it is in <module> \(train.py:\d+\)")
        (tmp_path / "go").touch()
        await_line(job, r"rank 1 continues after \d[\d.]* s")
        job.end(0)
    kinds = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert (kinds.count("stalled"), kinds.count("stall_over")) == (1, 1), kinds
    assert "hang" not in kinds


# The process group's timeout ends the job: the last verdict explains the error of a rank that is
# not its cause.
def test_the_report_explains_the_timeout_of_a_collective(tmp_path: Path) -> None:
    limited = SCRIPT.replace('("gloo")', '("gloo", timeout=datetime.timedelta(seconds=30))')
    wait = "if rank == 1: sleep()\ndist.all_reduce(ones)\n"
    (tmp_path / "train.py").write_text("import datetime\n" + limited + wait)
    result = tmp_path / "result.json"
    done = launch(
        "--standalone", "--nproc-per-node=3", f"--result-json={result}", "--failure-grace=0",
        str(tmp_path / "train.py"),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    hint = r"hint +before this failure the job had stalled: " + WAITS
    assert re.search(hint, done.stderr), done.stderr
    found = json.loads(result.read_text())
    assert re.search(WAITS, found["first_failure"]["hint"])
    assert [bool(re.match(WAITS, one["message"])) for one in found["stalls"]] == [True]


START = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
"""


def run_one_worker(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(script)
    return launch("--standalone", "--nproc-per-node=1", str(tmp_path / "train.py"))


def test_a_thread_whose_name_is_no_text_harms_nothing(tmp_path: Path) -> None:
    set_name = "import ctypes\nctypes.CDLL(None).prctl(15, b'\\xe8\\xae', 0, 0, 0)\n"
    read = "import time\ntime.sleep(6)\n"  # the operations are read after some four seconds
    done = run_one_worker(tmp_path, set_name + START + read)
    assert done.returncode == 0, done.stderr
