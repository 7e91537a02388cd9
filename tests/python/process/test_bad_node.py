"""--bad-node-codes: a worker's exit code that means that its node is bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.launching import await_line, free_endpoint, launch, shell_job


@pytest.mark.smoke
def test_bad_node_leaves_and_a_spare_takes_its_place(tmp_path: Path) -> None:
    options = ("--rdzv-conf=settle=0", "--bad-node-codes=40-42")
    found = tmp_path / "found"
    worker = f"""
        echo round $ELASTIC_ROUND
        test $ELASTIC_ROUND = 1 && exit
        until test -e {found}; do sleep 0.02; done
        test "$BAD" = 1 && exit 42
        exec sleep 1000
    """
    with shell_job(free_endpoint(), "2", worker, *options) as nodes:
        good = nodes.start(f"--result-json={tmp_path / 'good.json'}")
        await_line(good, "as host")  # the coordinator stays
        bad = nodes.start(f"--result-json={tmp_path / 'bad.json'}", BAD="1")
        assert bad.stdout.readline() == "round 0\n"
        await_line(nodes.start(), "waiting at")
        found.touch()
        done = nodes.finish_with(0, 42, 0)
    assert (
        "that code means a bad node (--bad-node-codes): this node leaves the job" in done[1].stderr
    )
    assert done[2].stdout == "round 1\n"
    good_result = json.loads((tmp_path / "good.json").read_text())
    assert (good_result["exit_code"], good_result["restarts"]) == (0, 0)
    bad_result = json.loads((tmp_path / "bad.json").read_text())
    assert (bad_result["exit_code"], bad_result["first_failure"]["exit_code"]) == (42, 42)


def test_only_node_ends_without_a_restart() -> None:
    script = ("--no-python", "sh", "-c", "echo started; exit 42")
    done = launch("--standalone", "--max-restarts=3", "--bad-node-codes=42", *script)
    assert (done.returncode, done.stdout) == (42, "started\n"), done.stderr
    assert "exited with code 42" in done.stderr
