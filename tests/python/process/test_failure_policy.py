"""--failure-policy: the rules decide for the whole job."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.launching import await_line, free_endpoint, launch, shell_job

RULES = """
[[rule]]
on = "exit 9"
do = "restart"
count = false
max = 2

[[rule]]
on = "exit 7"
do = "stop"
"""


@pytest.mark.smoke
def test_restarts_within_the_limit_of_a_rule_are_not_charged(tmp_path: Path) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text(RULES)
    worker = "echo round $ELASTIC_ROUND; test $RANK = 1 && exit 9; exec sleep 1000"
    options = (f"--failure-policy={rules}", "--restart-backoff=0")
    with shell_job(free_endpoint(), "2", worker, *options) as nodes:
        await_line(nodes.start(), "as host")
        nodes.start()
        done = nodes.finish_with(9, 9)
    # Rank 0 may be stopped before it prints.
    assert "round 0\nround 1\nround 2\n" in [node.stdout for node in done]
    for node in done:
        assert "as rule 1 (line 2) of the failure policy decides" in node.stderr
        assert "    rule    rule 1 (line 2) allows 2 restarts\n" in node.stderr


def test_a_rule_ends_a_job_of_one_node(tmp_path: Path) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text(RULES)
    script = ("--no-python", "sh", "-c", "echo started; exit 7")
    done = launch("--standalone", "--max-restarts=3", f"--failure-policy={rules}", *script)
    assert (done.returncode, done.stdout) == (7, "started\n"), done.stderr
    assert "    rule    rule 2 (line 8) ends the job\n" in done.stderr


def test_a_plan_shows_the_rules(tmp_path: Path) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text(RULES)
    shown = launch("--dry-run", "--standalone", f"--failure-policy={rules}", "--no-python", "true")
    assert "exit 9: restart, not counted, at most 2 (line 2)" in shown.stdout, shown.stderr
    assert "exit 7: stop (line 8)" in shown.stdout


def test_codes_that_end_the_job_are_a_rule_then(tmp_path: Path) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text(RULES)
    words = ("--standalone", f"--failure-policy={rules}", "--no-restart-codes=3", "true")
    refused = launch("--dry-run", *words)
    assert refused.returncode == 2
    assert "cannot be combined with" in refused.stderr
