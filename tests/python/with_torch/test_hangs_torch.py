"""Hangs of gloo ranks, and steps of torch's optimizers.

``ELASTIC_HANG_ROUNDS=20 python -m pytest tests/python/with_torch/test_hangs_torch.py -k matrix``
runs the long matrix: 8 ranks, five kinds of hang, each so many times.

``ELASTIC_HANG_MINUTES=60 python -m pytest tests/python/with_torch/test_hangs_torch.py -k pauses``
runs two jobs with a learned limit for so long, one of which has pauses that are longer than the
smallest limit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from support.hanging import idle_seconds
from support.launching import (
    DEADLINE_S,
    assert_all_ended,
    clean_environment,
    launch,
    launcher_command,
)
from support.paths import ROOT, STUBS

STUB = str(STUBS / "stub_hanging_rank.py")
KINDS = ("sleep", "loop", "stop", "file", "lock")
PAUSING = str(STUBS / "stub_pausing_rank.py")
ROUNDS = int(os.environ.get("ELASTIC_HANG_ROUNDS", "0"))
MINUTES = float(os.environ.get("ELASTIC_HANG_MINUTES", "0"))


@pytest.mark.skipif(ROUNDS == 0, reason="ELASTIC_HANG_ROUNDS is not set")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_matrix_of_eight_gloo_ranks(turn: int, kind: str, tmp_path: Path) -> None:
    more = () if turn % 4 == 0 else ("--warm",)  # imports for one rank, not for eight
    check_suspect(kind, 8, turn % 8, tmp_path, 5, *more)


@pytest.mark.skipif(MINUTES == 0, reason="ELASTIC_HANG_MINUTES is not set")
def test_pauses_of_ten_steps_are_no_hang(tmp_path: Path) -> None:
    environ = clean_environment()
    jobs = []
    for length in ("0.05", "7"):
        log = tmp_path / f"log.{length}"
        command = launcher_command("--standalone", "--nproc-per-node=2", f"--event-log={log}.json",
                                   PAUSING, str(60 * MINUTES), length)  # fmt: skip
        with log.open("w") as output:
            jobs.append((log, subprocess.Popen(command, stdout=output, stderr=output, env=environ)))
    try:
        for log, job in jobs:
            assert job.wait(60 * MINUTES + DEADLINE_S) == 0, log.read_text()
    finally:
        for _, job in jobs:
            job.kill()
            job.wait()
    assert_all_ended(environ)
    for log, _ in jobs:
        lines = log.read_text().splitlines()
        print(*lines, sep="\n")
        assert len(lines) == 2, lines  # nothing but the sums of the two ranks
        events = Path(f"{log}.json").read_text().splitlines()
        kinds = {json.loads(line)["event"] for line in events}
        assert not kinds & {"hang", "straggling"}, kinds


def check_suspect(
    kind: str, ranks: int, hangs: int, directory: Path, limit: int, *more: str
) -> None:
    options = (f"--nproc-per-node={ranks}", f"--hang-timeout={limit}", "--hang-action=restart",
               "--max-restarts=1", "--failure-grace=1", *more)  # fmt: skip
    done = launch("--standalone", *options, STUB, kind, str(hangs), str(directory), check=True)
    assert idle_seconds(done.stderr) >= limit
    (suspect,) = re.findall(r"^ *rank (\d+) .*: suspected$", done.stderr, re.M)
    assert int(suspect) == hangs, done.stderr
    assert "in all_reduce (stub_hanging_rank.py:" in done.stderr
    if kind != "stop":
        call = "read_bytes" if kind == "file" else "hang"
        assert f"in {call} (stub_hanging_rank.py:" in done.stderr


def test_optimizer_steps_are_progress(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import struct, os, sys, threading\n"
        "import torch\n"
        "from elastic import _worker\n"
        "weights = torch.ones(2, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weights], lr=0.1)\n"
        "for _ in range(7):\n"
        "    weights.sum().backward()\n"
        "    optimizer.step()\n"
        "class Here: pass\n"
        "import pickle\n"
        "pickle.loads(pickle.dumps(Here()))\n"
        "page = os.pread(_worker.stacks_descriptor(), 16, 256)\n"
        "print(__name__, __file__ == sys.argv[0], sys.argv[1:], *struct.unpack('qq', page)[1:])\n"
    )
    done = launch("--standalone", str(script), "one")
    assert done.stdout == "__main__ True ['one'] 7\n", done.stderr


def test_a_wait_is_limited_in_a_script_without_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(3):\n"
        "    hangs = step == 1 and dist.get_rank() == 1 and os.environ['ELASTIC_ROUND'] == '0'\n"
        "    while hangs: signal.pause()\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "dist.destroy_process_group()\n"
        "print('done', flush=True)\n"
    )
    options = ("--hang-timeout=3", "--hang-action=restart", "--max-restarts=1")
    done = launch("--standalone", "--nproc-per-node=2", *options, str(script), check=True)
    assert done.stdout.count("done") == 2
    assert "the job hangs: ranks have waited in a collective operation for " in done.stderr
    assert re.search(r"rank 1 .*\(train.py:5\): suspected", done.stderr), done.stderr


def test_plain_script_that_hangs_is_explained(tmp_path: Path) -> None:
    """It neither imports elastic nor reports a step."""
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "pair = dist.new_group([0, 1])\n"
        "weights = torch.ones(2, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weights], lr=0.1)\n"
        "for step in range(1000):\n"
        "    weights.sum().backward()\n"
        "    while step == 3 and dist.get_rank() == 1: signal.pause()\n"
        "    dist.all_reduce(weights.grad, group=pair)\n"
        "    optimizer.step()\n"
    )
    done = launch("--standalone", "--nproc-per-node=2", "--hang-timeout=8", "--hang-action=fail",
                  str(script))  # fmt: skip
    assert done.returncode == 137, done.stderr
    assert "rank 1 has not entered all_reduce #" in done.stderr, done.stderr
    assert re.search(r"rank 1 in .*\(train.py:8\): suspected", done.stderr), done.stderr


def test_example_hangs_is_found_and_restarted() -> None:
    done = launch("--standalone", "--nproc-per-node=2", "--hang-timeout=6", "--hang-action=restart",
                  "--max-restarts=1", str(ROOT / "examples/hang.py"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "finished after 20 steps in round 1" in done.stdout
    assert re.search(r"rank 1 in .*\(hang.py:\d+\): suspected", done.stderr), done.stderr
    assert "in all_reduce (hang.py:" in done.stderr
