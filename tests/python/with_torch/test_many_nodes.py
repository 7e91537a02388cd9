"""Jobs with several nodes and real torch: training continues when nodes join or are lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.launching import DEADLINE_S, Job, clean_environment, free_endpoint

pytest.importorskip("torch")

from support.paths import EXAMPLES

sys.path.insert(0, str(EXAMPLES))

import namespaces
import watch_it_recover


def watch(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "watch_it_recover.py"), *words],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# test_succession.py tests the loss of the coordinator, in less time.
SCENES = [scene for scene in watch_it_recover.SCENES if not scene.startswith("lose-")]


@pytest.mark.parametrize("scene", SCENES)
def test_training_between_hosts_recovers(scene: str) -> None:
    pytest.importorskip("sklearn")
    if why_not := namespaces.why_not():
        pytest.skip(why_not)
    output = watch(scene)
    assert "all nodes are on localhost" not in output
    assert "recovered: accuracy" in output


def test_training_on_localhost_recovers_without_namespaces() -> None:
    pytest.importorskip("sklearn")
    output = watch("--local", "replace-rank-0")
    assert "all nodes are on localhost" in output
    assert "recovered: accuracy" in output


def check_sums(job: Job, workers: int) -> list[subprocess.CompletedProcess[str]]:
    done = job.finish()
    assert [node.returncode for node in done] == [0, 0], [node.stderr for node in done]
    world = 2 * workers
    expected = {f"rank {rank} of {world}: sum {world * (world - 1) // 2}" for rank in range(world)}
    output = [set(node.stdout.splitlines()) for node in done]
    assert output[0] | output[1] == expected
    assert [len(lines) for lines in output] == [workers, workers]
    return done


def test_two_nodes_see_the_sum_by_flags() -> None:
    words = ["--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-id=sum"]
    words += [f"--rdzv-endpoint={free_endpoint()}"]
    with Job(words, [str(EXAMPLES / "all_reduce.py")]) as job:
        job.start()
        job.start()
        check_sums(job, 8)


def test_two_nodes_see_the_sum_by_variables_alone() -> None:
    variables = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": "sum",
        "PET_RDZV_ENDPOINT": free_endpoint(),
    }
    with Job([], [str(EXAMPLES / "all_reduce.py")]) as job:
        job.start(**variables)
        job.start(**variables)
        check_sums(job, 8)


def test_two_nodes_see_the_sum_with_given_ranks() -> None:
    address, _, port = free_endpoint().rpartition(":")
    words = ["--nnodes=2", "--nproc-per-node=2", f"--master-addr={address}"]
    words += [f"--master-port={port}"]
    with Job(words, [str(EXAMPLES / "all_reduce.py")]) as job:
        job.start("--node-rank=1")
        job.start("--node-rank=0")
        first, second = check_sums(job, 2)
        assert "rank 0 of 4" in second.stdout
        assert "rank 3 of 4" in first.stdout
