"""Jobs of two nodes whose workers sum over all ranks with torch."""

from __future__ import annotations

import subprocess

from support.launching import Job


def check_sums(job: Job, workers: int) -> list[subprocess.CompletedProcess[str]]:
    done = job.succeed()
    world = 2 * workers
    expected = {f"rank {rank} of {world}: sum {world * (world - 1) // 2}" for rank in range(world)}
    output = [set(node.stdout.splitlines()) for node in done]
    assert output[0] | output[1] == expected
    assert [len(lines) for lines in output] == [workers, workers]
    return done
