"""One rank evaluates, writes, loads or compiles while the others wait: no line, whatever it takes.

``ELASTIC_PAUSE_MINUTES=60 python -m pytest -s tests/python/nightly/test_collective_pauses.py``
runs for an hour, with pauses of up to two minutes, and prints them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from support.launching import DEADLINE_S, launch
from support.paths import STUBS

MINUTES = float(os.environ.get("ELASTIC_PAUSE_MINUTES", "3"))
LONGEST_S = min(120.0, 15 * MINUTES)


@pytest.mark.timeout(60 * MINUTES + LONGEST_S + DEADLINE_S)
def test_a_rank_that_works_is_not_named(tmp_path: Path) -> None:
    events = tmp_path / "events"
    done = launch(
        "--standalone", "--nproc-per-node=3", f"--event-log={events}",
        str(STUBS / "stub_pauses_in_collectives.py"), str(60 * MINUTES), str(LONGEST_S),
        timeout=60 * MINUTES + LONGEST_S + DEADLINE_S,
    )  # fmt: skip
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stderr
    kinds = {json.loads(line)["event"] for line in events.read_text().splitlines()}
    assert not kinds & {"stalled", "stall_over", "straggling", "hang", "mismatch"}, done.stderr
