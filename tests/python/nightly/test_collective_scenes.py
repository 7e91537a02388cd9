"""Every way in which ranks may wait in collective operations for ever."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.collective_scenes import (
    EARLY,
    MISMATCHES,
    SCENES,
    SCRIPT,
    check_early,
    check_scene,
    check_stages,
)
from support.launching import await_line, free_endpoint, job_at, launch


@pytest.mark.parametrize("name", SCENES)
def test_the_report_of_a_hang_names_the_cause(name: str, tmp_path: Path) -> None:
    check_scene(name, tmp_path)


@pytest.mark.parametrize("name", EARLY)
def test_a_plain_start_names_the_rank(name: str, tmp_path: Path) -> None:
    check_early(name, tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_waits_of_one_job_are_logged(ranks: int, nodes: int, tmp_path: Path) -> None:
    check_stages(ranks, nodes, tmp_path)


def test_every_node_logs_the_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + "if rank == 2: sleep()\ndist.all_reduce(ones)\n")
    program = [str(script)]
    with job_at(free_endpoint(), "2", program, "--nproc-per-node=2") as job:
        for _ in range(2):
            job.start()
        for node in job.nodes:
            await_line(node, r"rank 2 has not entered all_reduce #4 .* 3 ranks wait since \d")


# Nothing is logged before the end: the rank that the others wait for computes.
def test_the_timeout_of_a_wait_for_a_rank_that_computes_is_explained(tmp_path: Path) -> None:
    limited = SCRIPT.replace('("gloo")', '("gloo", timeout=datetime.timedelta(seconds=40))')
    wait = "while rank == 1: pass\ndist.all_reduce(ones)\n"
    (tmp_path / "train.py").write_text("import datetime\n" + limited + wait)
    done = launch(
        "--standalone", "--nproc-per-node=3", "--failure-grace=0", str(tmp_path / "train.py")
    )
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stderr.splitlines() if "rank 1 has not entered" in line]
    assert len(lines) == 1, done.stderr
    assert re.search(
        r"hint +before this failure the job had stalled: rank 1 has not entered all_reduce #4 of "
        r"the default group; it computes, reads or writes, which is reported only after 10 min "
        r"\(--hang-timeout\)",
        lines[0],
    ), done.stderr


def test_sizes_of_ranks_on_two_nodes_are_compared(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n" + SCRIPT + MISMATCHES)
    program = [str(script)]
    with job_at(free_endpoint(), "2", program, "--nproc-per-node=2") as job:
        for _ in range(2):
            job.start()
        for node in job.nodes:
            await_line(
                node,
                r"rank 3 called broadcast #\d+ of the default group with another size or type than "
                r"3 ranks \(0-2\)",
            )
        (tmp_path / "go").touch()
        job.succeed()
