"""A job that does without a host: by a rule of the failure policy, and by a command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.launching import await_line, free_endpoint, launch, shell_job

RULES = """
[[rule]]
on = "exit 42"
do = "exclude"
"""
EXIT_EXCLUDED = 79


@pytest.fixture(autouse=True)
def _host_names() -> None:
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot give a process a host name of its own")


def host(name: str) -> Callable[..., list[str]]:
    script = 'hostname "$0"; exec "$@"'
    return lambda *command: ["unshare", "--uts", "sh", "-c", script, name, *command]


@pytest.mark.smoke
def test_a_rule_excludes_the_host_of_a_failure(tmp_path: Path) -> None:
    rules, news = tmp_path / "policy.toml", tmp_path / "news"
    rules.write_text(RULES)
    os.mkfifo(news)
    worker = "test $ELASTIC_ROUND = 0 || exit 0; test $(hostname) = bad && exit 42; exec sleep 1000"
    command = 'printf "%s\\n" "$ELASTIC_EXCLUDED_HOST" "$ELASTIC_EXCLUDED_REASON" '
    options = (
        f"--failure-policy={rules}",
        f'--on-exclude={command} "$ELASTIC_EXCLUDED_SECONDS" "$ELASTIC_RUN_ID" > {news}',
        "--restart-backoff=0",
        "--max-restarts=1",
    )
    with shell_job(free_endpoint(), "2:3", worker, *options) as job:
        await_line(job.start(on=host("good1")), "as host")
        job.start(on=host("bad"))
        job.start(on=host("good2"))
        told = news.read_text().splitlines()
        done = job.finish_with(0, EXIT_EXCLUDED, 0)
    why = "rule 1 (line 2) of the failure policy excludes host bad"
    assert told == ["bad", why, "3600", "job"]
    assert f"the job does without host bad for a while: {why}" in done[1].stderr


def test_a_command_excludes_a_host_and_readmits_it() -> None:
    endpoint = free_endpoint()
    worker = "test $ELASTIC_ROUND -ge 2 && exit 0; echo runs >&2; exec sleep 1000"
    job_name = (endpoint, "--rdzv-id=job")
    with shell_job(endpoint, "2:3", worker, "--max-restarts=1") as job:
        nodes = [job.start(on=host("good1"))]
        await_line(nodes[0], "as host")
        nodes += [job.start(on=host(name)) for name in ("bad", "good2")]
        for node in nodes:
            await_line(node, "runs")
        unnamed = launch("exclude", "bad")
        excluded = launch("exclude", *job_name, "bad", "--reason=fan 3")
        assert nodes[1].wait(60.0) == EXIT_EXCLUDED
        await_line(nodes[0], "runs")
        shown = launch("status", *job_name)
        again = job.start(on=host("bad"))
        assert again.wait(60.0) == EXIT_EXCLUDED
        readmitted = launch("readmit", *job_name, "bad")
        twice = launch("readmit", *job_name, "bad")
        job.start(on=host("bad"))
        job.finish_with(0, EXIT_EXCLUDED, 0, EXIT_EXCLUDED, 0)
    assert unnamed.returncode == 2
    assert "exclude changes a job, so name it" in unnamed.stderr
    assert (excluded.returncode, excluded.stderr) == (0, "")
    assert excluded.stdout == "host bad is excluded for 1 h; the round ends for that\n"
    assert "  excluded     bad until " in shown.stdout
    assert ": fan 3\n" in shown.stdout
    assert readmitted.stdout == "host bad is no longer excluded\n"
    assert (twice.returncode, twice.stdout) == (1, "host bad is not excluded\n")
