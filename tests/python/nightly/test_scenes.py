"""The scenes and sums that test_training.py leaves out."""

from __future__ import annotations

import re

import pytest
import watch_it_recover

from support.launching import Job, free_endpoint
from support.paths import EXAMPLES
from support.scenes import CI_SCENE, check_scene, watch

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(400)

# test_succession.py tests the loss of the coordinator, in less time.
SCENES = [s for s in watch_it_recover.SCENES if not s.startswith("lose-") and s != CI_SCENE]


@pytest.mark.parametrize("scene", SCENES)
def test_training_between_hosts_recovers(scene: str) -> None:
    check_scene(scene)


def test_training_on_localhost_recovers_without_namespaces() -> None:
    pytest.importorskip("sklearn")
    output = watch("--local", "replace-rank-0")
    assert "all nodes are on localhost" in output
    assert "recovered: accuracy" in output


@pytest.mark.parametrize("words", [(), ("--local",)], ids=["hosts", "localhost"])
def test_processes_go_on_while_nodes_join_and_leave(words: tuple[str, ...]) -> None:
    pytest.importorskip("sklearn")
    output = watch(*words, program="watch_it_grow_and_shrink.py")
    happened = output[output.index("What happened:") :].splitlines()[1:]
    pids = [set(re.findall(r"process (\d+) of", line)) for line in happened[:5]]
    assert [len(one) for one in pids] == [2, 3, 2, 3, 2], output
    (stayed,) = set.intersection(*pids)
    assert f"  Process {stayed} of node1 trained from the first step to the last." in happened
    steps = [int(step) for step in re.findall(r"went on at step (\d+)", output)]
    assert steps == sorted(steps) and steps[0] > 0, output


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
        done = job.succeed()
    lines = [line for node in done for line in node.stdout.splitlines()]
    assert sorted(lines) == sorted(f"rank {rank} of 16: sum 120" for rank in range(16))
