"""--node-check=network: the agents measure the network between them before the first round."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.launching import free_endpoint, launch, shell_job

OPTION = "--node-check=network"
SCRIPT = ("--no-python", "sh", "-c", "echo started")


@pytest.mark.alone
@pytest.mark.parametrize("token", [False, True])
def test_network_of_three_nodes_is_good(token: bool, tmp_path: Path) -> None:
    options = [OPTION]
    if token:
        file = tmp_path / "token"
        file.write_text("a-token-of-32-characters-00000000\n")
        file.chmod(0o600)
        options.append(f"--token-file={file}")
    with shell_job(free_endpoint(), "3", "echo started", *options) as nodes:
        for one in range(3):
            nodes.start(f"--event-log={tmp_path}/{one}", LOGLEVEL="INFO")
        done = nodes.succeed()
    logs = "".join(one.stderr for one in done)
    assert re.search(r"the network between 3 nodes was checked in [\d.]+ m?s: good", logs), logs
    for one in range(3):
        lines = map(json.loads, (tmp_path / str(one)).read_text().splitlines())
        found = [line for line in lines if line["event"] == "node_check"]
        assert [(line["check"], line["verdict"]) for line in found] == [("network", "good")]
        assert re.search(r"with \S+: [\d.]+ .B/s and ", found[0]["reason"])


def test_one_node_has_no_network_to_check() -> None:
    done = launch("--standalone", OPTION, *SCRIPT)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
    assert done.stderr.count("the network is not checked: the job has one node") == 1


def test_node_without_the_option_is_not_measured() -> None:
    with shell_job(free_endpoint(), "2", "echo started") as nodes:
        nodes.start(OPTION, LOGLEVEL="INFO")
        nodes.start(LOGLEVEL="INFO")
        done = nodes.succeed()
    logs = "".join(one.stderr for one in done)
    assert "the network is not checked: 1 node of the round has --node-check=network" in logs


def test_check_is_made_once() -> None:
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 1'
    with shell_job(free_endpoint(), "2", script, OPTION, "--max-restarts=1") as nodes:
        for _ in range(2):
            nodes.start(LOGLEVEL="INFO")
        done = nodes.succeed()
    logs = "".join(one.stderr for one in done)
    assert logs.count("the network between 2 nodes was checked") == 1


def test_network_has_no_options() -> None:
    done = launch("--standalone", f"{OPTION} --fast", *SCRIPT)
    assert done.returncode != 0
    assert "the check network has no options" in done.stderr
