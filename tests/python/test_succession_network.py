"""Jobs whose coordinator's host disappears from the network, or is separated from the others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Job

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import namespaces

pytestmark = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())

SCRIPT = "echo world $WORLD_SIZE; exec sleep 1000"


def job(hosts: list[namespaces.Host], nnodes: str, conf: str) -> Job:
    options = ["--nnodes", nnodes, "--rdzv-backend=c10d", "--rdzv-id=job", "--no-python"]
    options += [f"--rdzv-endpoint={hosts[0].address}:29400", f"--rdzv-conf={conf}"]
    return Job([*options, "--shutdown-timeout=5"], ["sh", "-c", SCRIPT])


def next_world(node: subprocess.Popen[str]) -> str:
    """The size of the next round of a node; "": the node has ended."""
    assert node.stdout is not None
    for line in node.stdout:
        if line.startswith("world "):
            return line.split()[1]
    return ""


def await_log(node: subprocess.Popen[str], text: str) -> None:
    assert node.stderr is not None
    lines = []
    for line in node.stderr:
        lines.append(line)
        if text in line:
            return
    raise AssertionError(lines)


@pytest.fixture
def network() -> Iterator[namespaces.Network]:
    with namespaces.Network() as network:
        yield network


def test_the_coordinators_host_disappears(network: namespaces.Network) -> None:
    hosts = [network.add_host() for _ in range(3)]
    with job(hosts, "2:3", "node_timeout=1,voters=3") as nodes:
        started = [nodes.start(on=host.command) for host in hosts]
        assert [next_world(node) for node in started] == ["3", "3", "3"]
        await_log(started[0], "survives the loss of any one host")
        hosts[0].unplug()
        assert [next_world(node) for node in started[1:]] == ["2", "2"]


def test_a_minority_stops_its_workers_and_the_majority_goes_on(
    network: namespaces.Network,
) -> None:
    hosts = [network.add_host() for _ in range(5)]
    conf = "node_timeout=1,store_grace=3,settle=0,voters=5"
    with job(hosts, "2:5", conf) as nodes:
        started = [nodes.start(on=host.command) for host in hosts]
        assert [next_world(node) for node in started] == ["5"] * 5
        await_log(started[0], "survives the loss of any two hosts")
        network.split(hosts[0], hosts[1])
        assert [next_world(node) for node in started[2:]] == ["3"] * 3
        # The separated side would be enough for a round of its own (MIN is 2), and begins none.
        assert [next_world(node) for node in started[:2]] == ["", ""]
        assert [node.wait(60) for node in started[:2]] == [77, 77]
