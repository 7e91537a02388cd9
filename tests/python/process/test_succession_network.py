"""Jobs whose coordinator's host disappears from the network, or is separated from the others."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import namespaces
import pytest

from support.launching import DEADLINE_S, Job, await_line, launcher_command, run_program, shell_job
from support.waiting import eventually

pytestmark = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())

SCRIPT = "echo world $WORLD_SIZE; exec sleep 1000"


def job(hosts: list[namespaces.Host], nnodes: str, conf: str, *words: str) -> Job:
    words = (f"--rdzv-conf={conf}", "--shutdown-timeout=5", *words)
    return shell_job(f"{hosts[0].address}:29400", nnodes, SCRIPT, *words)


def next_world(node: subprocess.Popen[str]) -> str:
    """The size of the next round of a node; "": the node has ended."""
    for line in node.stdout:
        if line.startswith("world "):
            return line.split()[1]
    return ""


@pytest.fixture
def network() -> Iterator[namespaces.Network]:
    with namespaces.Network() as network:
        yield network


def test_a_minority_stops_its_workers_and_the_majority_goes_on(network: namespaces.Network) -> None:
    hosts = [network.add_host() for _ in range(5)]
    conf = "node_timeout=5,store_grace=10,settle=0,voters=5,last_call_timeout=100"
    with job(hosts, "2:5", conf) as nodes:
        started = [nodes.start(on=host.command) for host in hosts]
        assert [next_world(node) for node in started] == ["5"] * 5
        await_line(started[0], "survives the loss of any two hosts")
        network.split(hosts[0], hosts[1])
        assert [next_world(node) for node in started[2:]] == ["3"] * 3
        # The separated side would be enough for a round of its own (MIN is 2), and begins none.
        assert [next_world(node) for node in started[:2]] == ["", ""]
        assert [node.wait(DEADLINE_S) for node in started[:2]] == [77, 77]


class Names:
    """Runs programs on hosts with an /etc/hosts of the test's, so that the system's resolver gives
    a name several addresses, as a headless service of Kubernetes has."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def give(self, *hosts: namespaces.Host) -> None:
        lines = ["127.0.0.1 localhost", *(f"{host.address} pods" for host in hosts)]
        self._path.write_text("\n".join([*lines, ""]))

    def on(self, host: namespaces.Host) -> Callable[..., list[str]]:
        script = f'mount --bind {self._path} /etc/hosts && exec "$@"'
        return lambda *words: host.command("unshare", "--mount", "sh", "-c", script, "sh", *words)


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path / "hosts")


def job_of_pods(nnodes: str, conf: str) -> Job:
    return shell_job("pods:29400", nnodes, SCRIPT, f"--rdzv-conf={conf}", "--shutdown-timeout=5")


def listens(host: namespaces.Host) -> bool:
    done = run_program(host.command("ss", "-Hltn", "sport = :29400"), check=True)
    return host.address in done.stdout


def test_one_node_hosts_where_a_name_has_the_addresses_of_three(
    network: namespaces.Network, names: Names
) -> None:
    hosts = [network.add_host() for _ in range(3)]
    names.give(hosts[2], hosts[0], hosts[1])
    with job_of_pods("3", "node_timeout=10,voters=1") as nodes:
        # The host of the first address comes last.
        started = [nodes.start(on=names.on(host)) for host in hosts[1:]]
        for node in started:
            await_line(node, f"the agent at {hosts[0].address}, the first of them, must host it")
        started.append(nodes.start(on=names.on(hosts[0])))
        assert [next_world(node) for node in started] == ["3", "3", "3"]
        assert [listens(host) for host in hosts] == [True, False, False]
        for node in started:
            node.terminate()


def test_pods_find_the_job_at_any_address_of_their_name(
    network: namespaces.Network, names: Names
) -> None:
    hosts = [network.add_host() for _ in range(4)]
    names.give(*hosts[1:])
    with job_of_pods("2:3", "node_timeout=5,last_call_timeout=100") as nodes:
        started = [nodes.start(on=names.on(host)) for host in hosts[1:]]
        assert [next_world(node) for node in started] == ["3", "3", "3"]
        await_line(started[0], "survives the loss of any one host")
        # The other voters listen at their addresses of the name.
        eventually(lambda: all(listens(host) for host in hosts[1:]))
        hosts[1].unplug()
        assert [next_world(node) for node in started[1:]] == ["2", "2"]
        await_line(started[1], f"the former one at {hosts[1].address}:29400 did not answer")
        # A new pod with the first address of all, which would host: it asks the others first.
        names.give(*hosts)
        newcomer = nodes.start(on=names.on(hosts[0]))
        assert [next_world(node) for node in (newcomer, *started[1:])] == ["3", "3", "3"]
        status = run_program(
            names.on(hosts[0])(*launcher_command("status", "pods:29400", "--json")), check=True
        )
        assert '"nodes_in_round": 3' in status.stdout
        for node in (newcomer, *started[1:]):
            node.terminate()
