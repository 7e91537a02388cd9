"""Jobs with several nodes and real torch: training continues when nodes join or are lost."""

from __future__ import annotations

import pytest

from support.launching import Job, free_endpoint
from support.paths import EXAMPLES
from support.scenes import CI_SCENE, check_scene
from support.sums import check_sums


@pytest.mark.timeout(400)
def test_training_between_hosts_recovers() -> None:
    check_scene(CI_SCENE)


def test_two_nodes_see_the_sum_with_given_ranks() -> None:
    address, _, port = free_endpoint().rpartition(":")
    words = ["--nnodes=2", f"--master-addr={address}", f"--master-port={port}"]
    with Job(words, [str(EXAMPLES / "all_reduce.py")]) as job:
        job.start("--node-rank=1")
        job.start("--node-rank=0")
        first, second = check_sums(job, 1)
        assert "rank 0 of 2" in second.stdout
        assert "rank 1 of 2" in first.stdout
