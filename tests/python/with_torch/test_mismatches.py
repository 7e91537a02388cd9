"""Collective operations of different sizes that complete: a warning while the job runs."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

from support.collective_scenes import SCRIPT
from support.launching import await_line, launch, launched

# Rank 1 receives 4 values into a tensor of 8, which gloo does not notice. In the other group the
# ranks have different sizes, as they may.
LOOP = """
uneven = dist.new_group(list(range(dist.get_world_size())))
size = dist.get_world_size()
while not os.path.exists("go"):
    for _ in range(8):
        dist.all_reduce(ones)
        dist.broadcast(torch.zeros(8 if rank == 1 else 4), src=0)
        dist.all_reduce(torch.ones(4).reshape((2, 2) if rank == 1 else (4,)), group=uneven)
        splits = [rank + 1] * size
        received = torch.zeros(sum(range(1, size + 1)))
        dist.all_to_all_single(
            received, torch.ones(size * (rank + 1)), list(range(1, size + 1)), splits, group=uneven
        )
        dist.all_gather_object([None] * size, "x" * (rank + 1), group=uneven)
        dist.gather_object("y" * rank, [None] * size if rank == 0 else None, group=uneven)
        dist.broadcast_object_list(["z" * rank], group=uneven)
    time.sleep(0.1)
"""
LINE = (
    r"rank 1 called broadcast #\d+ of the default group with another size or type than 2 ranks "
    r"\(0,2\), and no error was raised: the result may be wrong"
)


def test_a_size_that_gloo_does_not_notice_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT + LOOP)
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
