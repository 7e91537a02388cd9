"""The function of a failure policy decides where no rule does, for the whole job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.launching import await_line, free_endpoint, launch, shell_job

RULES = """
import os
import time
from elastic.policy import Decision

def decide(failure):
    if failure.exit_code == 9:
        return Decision("restart", count=False, reason=f"rank {failure.rank} was unlucky")
    if failure.exit_code == 8:
        return "exclude"
    if failure.exit_code == 7:
        time.sleep(3600)
    return "stop" if "no data" in failure.error else None
"""
POLICY = """
function = "site_rules:decide"

[[rule]]
on = "exit 5"
do = "stop"
"""


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The option; the module of the function is importable in launchers."""
    (tmp_path / "site_rules.py").write_text(RULES)
    (tmp_path / "policy.toml").write_text(POLICY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return f"--failure-policy={tmp_path / 'policy.toml'}"


def test_its_restarts_need_not_be_charged(policy: str) -> None:
    worker = "echo round $ELASTIC_ROUND >&2; test $RANK$ELASTIC_ROUND = 10 && exit 9; "
    worker += "test $ELASTIC_ROUND = 1 || exec sleep 1000"
    with shell_job(free_endpoint(), "2", worker, policy, "--max-restarts=0") as nodes:
        await_line(nodes.start(), "as host")
        nodes.start()
        done = nodes.finish_with(0, 0)
    for node in done:
        assert (
            "as the policy function site_rules:decide (rank 1 was unlucky) decides" in node.stderr
        )


def test_it_ends_the_job_by_the_error(policy: str) -> None:
    script = "raise ValueError('no data')"
    words = ("--standalone", "--max-restarts=3", policy)
    done = launch(*words, "--no-python", os.environ.get("PYTHON", "python3"), "-c", script)
    assert done.returncode == 1, done.stderr
    assert "    rule    the policy function site_rules:decide ends the job\n" in done.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('function = "site_rules:decide"', "the policy function site_rules:decide ends the job"),
        (
            "stop_without_progress = 2",
            "2 rounds ended without a step after the first (stop_without_progress)",
        ),
    ],
)
def test_what_decides_without_a_rule_is_named(
    content: str, why: str, policy: str, tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(content)
    script = "raise ValueError('no data')"
    words = ("--standalone", "--max-restarts=9", "--restart-backoff=0", policy, "--no-python")
    done = launch(*words, os.environ.get("PYTHON", "python3"), "-c", script)
    assert done.returncode == 1, done.stderr
    assert f"    rule    {why}\n" in done.stderr


def test_a_rule_decides_before_it_and_the_budget_after_it(policy: str) -> None:
    ruled = launch("--standalone", "--max-restarts=3", policy, "--no-python", "sh", "-c", "exit 5")
    assert "    rule    rule 1 (line 4) ends the job\n" in ruled.stderr
    left = launch("--standalone", "--max-restarts=1", policy, "--no-python", "sh", "-c", "exit 4")
    assert left.returncode == 4
    assert "    rule    " not in left.stderr
    assert "restarting, 0 of 1 restarts left" in left.stderr


def test_a_function_that_does_not_answer_is_not_waited_for(policy: str) -> None:
    words = ("--standalone", "--max-restarts=0", policy, "--no-python", "sh", "-c", "exit 7")
    done = launch(*words)
    assert done.returncode == 7
    assert "the policy function has not answered about rank 0 within" in done.stderr


def test_a_function_that_cannot_be_loaded_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('function = "no_such_module:decide"')
    rules = f"--failure-policy={tmp_path / 'policy.toml'}"
    done = launch("--standalone", rules, "--no-python", "true")
    assert done.returncode == 2
    assert "the policy function 'no_such_module:decide' cannot be loaded" in done.stderr
    plan = launch("--dry-run", "--standalone", rules, "--no-python", "true")
    assert (
        "worker or hang: what the function no_such_module:decide says, if anything" in plan.stdout
    )
