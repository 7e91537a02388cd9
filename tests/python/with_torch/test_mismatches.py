"""Collective operations of different sizes that complete: a warning while the job runs."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

from support.collective_scenes import MISMATCHES, SCRIPT
from support.launching import await_line, launch, launched

LINE = (
    r"rank 2 called broadcast #\d+ of the default group with another size or type than 2 ranks "
    r"\(0-1\), and no error was raised: the result may be wrong"
)


def test_a_size_that_gloo_does_not_notice_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + MISMATCHES)
    events, result = tmp_path / "events", tmp_path / "result"
    job_id = f"mismatch-{uuid.uuid4().hex}"
    with launched(
        "--nnodes=1", "--nproc-per-node=3", f"--rdzv-id={job_id}", f"--event-log={events}",
        f"--result-json={result}", str(tmp_path / "train.py"), cwd=tmp_path,
    ) as job:  # fmt: skip
        await_line(job, LINE)
        shown = json.loads(launch("status", job_id, "--json", check=True).stdout)
        assert re.fullmatch(LINE, shown["mismatch"])
        (tmp_path / "go").touch()
        job.end(0)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    found = [one["message"] for one in lines if one["event"] == "mismatch"]
    assert len(found) == 1, found
    assert re.fullmatch(LINE, found[0])
    kept = json.loads(result.read_text())["mismatches"]
    assert [one["message"] for one in kept] == found
