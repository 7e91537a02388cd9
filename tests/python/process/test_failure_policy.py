"""--failure-policy: the rules decide for the whole job."""

from __future__ import annotations

import json
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


def test_status_shows_the_rule_that_decided(tmp_path: Path) -> None:
    rules, endpoint = tmp_path / "policy.toml", free_endpoint()
    rules.write_text(RULES)
    worker = "test $ELASTIC_ROUND = 0 && exit 9; echo runs; exec sleep 1000"
    options = (f"--failure-policy={rules}", "--restart-backoff=0")
    with shell_job(endpoint, "1:2", worker, *options, "--rdzv-conf=last_call_timeout=0") as nodes:
        node = nodes.start()
        assert node.stdout.readline() == "runs\n"
        shown, data = (launch("status", endpoint, *more).stdout for more in ((), ("--json",)))
        node.terminate()
        nodes.finish_with(143)
    rule = "rule 1 (line 2) of the failure policy"
    assert [one["rule"] for one in json.loads(data)["rounds"]] == [rule, None]
    assert "exited with code 9; rule 1\n" in shown


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


def shown_rules(*words: str) -> list[str]:
    plan = launch("--dry-run", "--standalone", *words, "--no-python", "true").stdout.splitlines()
    return [line.partition(":")[2].strip() for line in plan if "rule" in line.partition(":")[0]]


def test_a_plan_shows_the_options_as_rules() -> None:
    words = ("--bad-node-codes=40,41", "--no-restart-codes=3,64-66", "--max-restarts=2")
    hangs = ("--hang-timeout=9", "--hang-action=fail")
    assert shown_rules(*words, *hangs) == [
        "exit 40,41: this node leaves, with that code (--bad-node-codes)",
        "hang: stop (--hang-action=fail)",
        "a program that cannot be executed: stop",
        "exit 3,64,65,66: stop (--no-restart-codes)",
        "any: restart, counted (--max-restarts=2)",
    ]


def test_codes_that_end_the_job_are_the_last_rule_of_a_policy(tmp_path: Path) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text('[[rule]]\non = "exit 3"\ndo = "restart"\nmax = 1\n')
    words = (f"--failure-policy={rules}", "--no-restart-codes=3-4", "--max-restarts=5")
    assert shown_rules(*words)[1:3] == [
        "exit 3: restart, at most 1 (line 1)",
        "exit 3-4: stop (--no-restart-codes)",
    ]
    common = ("--standalone", "--restart-backoff=0", *words, "--no-python", "sh", "-c")
    first = launch(*common, "exit $((ELASTIC_ROUND + 3))")  # 3, which the file's rule decides; 4
    assert first.returncode == 4
    assert "    rule    --no-restart-codes ends the job\n" in first.stderr


ENDS = "echo round $ELASTIC_ROUND; exit $((ELASTIC_ROUND + 2))"  # 2, 3, 4, …
HANGS = """
import threading
from elastic import worker
for step in range(1, 4):
    worker.progress(step)
print("three steps", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("option", "rule", "rounds"),
    [
        ("--max-restarts=2", 'do = "restart"\ncount = false\nmax = 2', 3),
        ("--no-restart-codes=3", 'on = "exit 3"\ndo = "stop"', 2),
        ("--hang-action=fail", 'on = "hang"\ndo = "stop"', 1),
    ],
)
def test_an_option_decides_as_its_rule(option: str, rule: str, rounds: int, tmp_path: Path) -> None:
    rules, steps = tmp_path / "policy.toml", tmp_path / "steps.py"
    rules.write_text(f"[[rule]]\n{rule}\n")
    steps.write_text(HANGS)
    common = ["--standalone", "--restart-backoff=0"]
    if not option.startswith("--max-restarts"):
        common.append("--max-restarts=4")
    with_rule = [f"--failure-policy={rules}"]
    program = ["--no-python", "sh", "-c", ENDS]
    if option.startswith("--hang-action"):
        with_rule.append("--hang-action=restart")
        program = ["--hang-timeout=2", str(steps)]
    by_option = launch(*common, option, *program)
    by_rule = launch(*common, *with_rule, *program)
    assert by_option.returncode != 0
    assert by_option.stdout.count("\n") == rounds, by_option.stderr
    assert by_rule.returncode == by_option.returncode, by_rule.stderr
    assert by_rule.stdout == by_option.stdout, by_rule.stderr
