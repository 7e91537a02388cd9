"""A wrong or stepping wall clock has no effect, because no decision uses it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from support.compiling import compile_library
from support.launching import free_endpoint, job_at

HOUR_S = 3600
# Before the restart a worker prints its wall-clock time periodically, until the file $0 exists.
WORKER = """
until [ -e "$0" ]; do echo "$RANK at $(date +%s)"; sleep 0.2; done
echo "$RANK ends, restarts: $TORCHELASTIC_RESTART_COUNT"
[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit "$RANK"
"""


@pytest.fixture
def wall_clock(tmp_path: Path) -> dict[str, str]:
    """The environment of a node whose wall clock has an offset from a file."""
    library = compile_library("stub_wall_clock.c", tmp_path / "wall_clock.so", "-ldl")
    return {"LD_PRELOAD": library, "STUB_WALL_CLOCK_FILE": str(tmp_path / "offset")}


def read_times(node: subprocess.Popen[str], count: int) -> list[int]:
    """The next times that a node's worker prints."""
    lines = [node.stdout.readline() for _ in range(count)]
    assert all(" at " in line for line in lines), lines
    return [int(line.split(" at ")[1]) for line in lines]


def test_wrong_and_stepping_wall_clock_has_no_effect(
    wall_clock: dict[str, str], tmp_path: Path
) -> None:
    offset = Path(wall_clock["STUB_WALL_CLOCK_FILE"])
    offset.write_text(f"{HOUR_S}\n")
    may_end = tmp_path / "may-end"
    program = ["sh", "-c", WORKER, str(may_end)]
    words = ("--max-restarts=1", "--rdzv-conf=node_timeout=15", "--no-python")
    with job_at(free_endpoint(), "2", program, *words) as job:
        right = job.start()
        wrong = job.start(**wall_clock)
        ahead = read_times(wrong, 1)[0]
        assert abs(ahead - HOUR_S - time.time()) < HOUR_S / 2
        offset.write_text(f"{-HOUR_S}\n")
        # Longer than between two heartbeats; the step is longer than node_timeout by far.
        beats = read_times(wrong, 40)
        read_times(right, 40)
        assert abs(beats[-1] + HOUR_S - time.time()) < HOUR_S / 2
        offset.write_text(f"{HOUR_S}\n")
        may_end.touch()
        done = job.succeed()
    ends = [line for node in done for line in node.stdout.splitlines() if "ends" in line]
    # One restart, caused by the worker of rank 1, and none by a clock.
    assert {"0 ends, restarts: 1", "1 ends, restarts: 1"} <= set(ends), ends
    assert not any("restarts: 2" in line for line in ends)
