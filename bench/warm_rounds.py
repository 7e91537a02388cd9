"""Restarts warm workers many times, and checks that nothing is left over.

    python bench/warm_rounds.py 1000

Two workers are forked, one of them fails, both are restarted. Compares the processes, descriptors
and memory of the launcher, the guardian and the template after 200 rounds and at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from pathlib import Path

# The launcher keeps the latest 64 incidents, and its heap settles after about a hundred.
WARM_UP_ROUNDS = 200

SCRIPT = """
import os, sys
number = int(os.environ["ELASTIC_ROUND"])
if number in (int(sys.argv[1]), int(sys.argv[2]) - 1):
    os.write(1, b"%d\\n" % number)
    if os.environ["RANK"] == "0":
        sys.stdin.readline()
sys.exit(int(os.environ["RANK"] == "0" and number < int(sys.argv[2]) - 1))
"""


@dataclass(frozen=True, slots=True)
class Found:
    expected_processes: int  # launcher, guardian, template, two workers
    processes: int
    descriptors_before: list[int]
    descriptors_after: list[int]
    growth_kib: int  # of the private memory of all these processes


def measure(launcher: Sequence[str], rounds: int, environ: Mapping[str, str]) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        begin = min(WARM_UP_ROUNDS, rounds // 2)
        job = subprocess.Popen(
            [*launcher, "--standalone", "--nproc-per-node=2", f"--max-restarts={rounds}",
             "--preload=json", str(script), str(begin), str(rounds)],
            env={**environ, "PET_RESTART_BACKOFF": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert job.stdin is not None and job.stdout is not None
        states = []
        try:
            for number in (begin, rounds - 1):
                for _ in range(2):
                    line = job.stdout.readline()
                    assert line == f"{number}\n", (line, job.poll())
                states.append(_state_at_rest(job.pid))
                job.stdin.write("\n")
                job.stdin.flush()
            assert job.wait(300) == 0
        finally:
            job.kill()
            job.wait()
            job.stdin.close()
            job.stdout.close()
    (_, descriptors, memory), (processes, descriptors_after, memory_after) = states
    return Found(5, processes, descriptors, descriptors_after, memory_after - memory)


def _state_at_rest(launcher: int) -> tuple[int, list[int], int]:
    """The state when the second worker has ended and the stores of earlier rounds are closed."""
    states = [_state(launcher)]
    while len(states) < 60 and (len(states) < 8 or any(one != states[-1] for one in states[-8:])):
        time.sleep(0.25)
        states.append(_state(launcher))
    return states[-1]


def _state(launcher: int) -> tuple[int, list[int], int]:
    """The number of processes; descriptors and memory of those that live as long as the job."""
    (guardian,) = _children(launcher)
    below = _children(guardian)
    template = next(pid for pid in below if "template.py" in _command(pid))
    lasting = [launcher, guardian, template]
    # A worker that has ended is a zombie until the round is over.
    processes = len(lasting) + len(below) - 1
    return (
        processes,
        [len(os.listdir(f"/proc/{pid}/fd")) for pid in lasting],
        sum(_private_kib(pid) for pid in lasting),
    )


def _children(pid: int) -> list[int]:
    return [
        int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ] + [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        if task != str(pid)
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _private_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+)", text, re.MULTILINE))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rounds", type=int, nargs="?", default=1000)
    found = measure([sys.executable, "-m", "elastic"], parser.parse_args().rounds, os.environ)
    print(found)
    is_clean = (
        found.processes == found.expected_processes
        and max(map(sub, found.descriptors_after, found.descriptors_before)) <= 0
    )
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
