"""--iface and --subnet: which of this host's addresses a node publishes, and what workers get."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from elastic import _C
from elastic.cli import command_line, interface
from elastic.errors import ConfigError

from support.launching import Job, clean_environment, launch, shell_job
from support.networks import hosts_of_two_networks

KNOWN = [
    ("lo", "127.0.0.1"),
    ("eth0", "10.77.0.1"),
    ("eth1", "fd00:1::5"),
    ("eth1", "10.78.0.1"),
    ("eth1", "10.79.0.1"),
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--iface=eth0"], ("eth0", "10.77.0.1")),
        (["--iface=eth1"], ("eth1", "10.78.0.1")),  # IPv4 first
        (["--iface=lo"], ("lo", "127.0.0.1")),
        (["--subnet=10.78.0.0/16"], ("eth1", "10.78.0.1")),
        (["--subnet=10.0.0.0/8"], ("eth0", "10.77.0.1")),
        (["--subnet=fd00:1::/64"], ("eth1", "fd00:1::5")),
        (["--subnet=10.79.3.4/16"], ("eth1", "10.79.0.1")),  # the address of a host in it
        (["--subnet=10.0.0.0/8", "--iface=eth1"], ("eth1", "10.78.0.1")),
    ],
)
def test_the_address_of_the_interface_and_of_the_network(
    options: list[str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_C, "host_addresses", lambda: KNOWN)
    line, name = interface.resolve(command_line.read([*options, "x.py"], {}))
    assert (name, line.text("local-addr")) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--iface=eth"], "--iface is eth: this host has no such interface that is up and has an "
                          "address (it has: lo, eth0, eth1)"),
        (["--subnet=10.80.0.0/16"], "--subnet is 10.80.0.0/16: this host has no address in it (it "
                                    "has: 127.0.0.1 on lo, 10.77.0.1 on eth0, "),
        (["--subnet=10.77.0.0/16", "--iface=eth1"], "--subnet is 10.77.0.0/16: eth1 of this host "
                                                    "has no address in it (it has: fd00:1::5 on "),
        (["--subnet=10.80"], "--subnet is '10.80': expected a network such as"),
        (["--iface=eth0", "--local-addr=10.77.0.1"], "--iface and --local-addr: give the address"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    options: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_C, "host_addresses", lambda: KNOWN)
    with pytest.raises(ConfigError) as caught:
        interface.resolve(command_line.read([*options, "x.py"], {}))
    assert str(caught.value).startswith(expected)


def test_an_address_that_comes_later_is_waited_for() -> None:
    """As a host name is: the network of a container may be attached after its start."""
    words = ("--rdzv-conf=join_timeout=3", "--no-python", "/bin/true")
    done = launch("--subnet=203.0.113.0/24", *words)
    assert done.returncode == 75
    retrying, gave_up = done.stderr.splitlines()
    assert "this host has no address in it" in retrying and "; trying again, gives" in retrying
    assert gave_up.endswith("gave up after 3 s")
    done = launch("--iface=no-such-one", *words)
    assert done.returncode == 2 and "trying again" not in done.stderr


def test_a_variable_can_be_set_for_every_host() -> None:
    line = command_line.read(["x.py"], {"PET_IFACE": "lo"})
    assert interface.resolve(line)[0].text("local-addr") == "127.0.0.1"


def test_workers_of_one_node_get_the_address_and_the_names() -> None:
    show = "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"
    script = ("--no-python", "sh", "-c", show)
    done = launch("--standalone", "--iface=lo", *script)
    assert (done.returncode, done.stdout) == (0, "127.0.0.1 lo =lo\n"), done.stderr
    # What is set by the user stays.
    mine = clean_environment() | {"GLOO_SOCKET_IFNAME": "eth7"}
    done = launch("--standalone", "--subnet=127.0.0.0/8", *script, environ=mine)
    assert (done.returncode, done.stdout) == (0, "127.0.0.1 eth7 =lo\n"), done.stderr


# ---- Hosts with two networks.


@pytest.fixture
def hosts() -> Iterator[list[namespaces.Host]]:
    with hosts_of_two_networks() as hosts:
        yield hosts


def test_node_that_does_not_reach_rank_0_fails_with_both_hosts_named(
    hosts: list[namespaces.Host], tmp_path: Path
) -> None:
    """The coordinator is reached in the first network; the second one is broken."""
    hosts[0].unplug_interface("data0")
    endpoint = f"{hosts[1].address}:29400"
    words = ("--subnet=10.78.0.0/24", "--reach-timeout=1", "--max-restarts=1")
    result = tmp_path / "result.json"
    with shell_job(endpoint, "2", "exec sleep 1000", *words) as nodes:
        nodes.start("--node-rank=0", f"--result-json={result}", on=hosts[0].command)
        nodes.start("--node-rank=1", on=hosts[1].command)
        done = nodes.finish_with(137, 137)
    for node in done:
        assert "does not reach the workers' store of the round on the node of rank 0: cannot" in (
            node.stderr
        )
        assert "connect to 10.78.0.1:" in node.stderr
        assert "infrastructure (unreachable)" in node.stderr
        assert "--iface or --subnet" in node.stderr
    data = json.loads(result.read_text())
    assert (data["class"], data["restarts"]) == ("infrastructure", 1)
    assert (data["first_failure"]["rank"], data["first_failure"]["cause"]) == (1, "unreachable")


def test_a_store_that_is_not_reached_is_no_failure_without_the_test(
    hosts: list[namespaces.Host],
) -> None:
    hosts[0].unplug_interface("data0")
    words = ("--subnet=10.78.0.0/24", "--reach-timeout=0")
    with shell_job(f"{hosts[1].address}:29400", "2", "exec sleep 1", *words) as nodes:
        for rank, host in enumerate(hosts):
            nodes.start(f"--node-rank={rank}", on=host.command)
        done = nodes.succeed()
    assert not [node for node in done if "does not reach" in node.stderr]


def test_all_nodes_end_with_the_code_of_the_one_whose_interface_has_lost_its_address(
    hosts: list[namespaces.Host], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"echo $RANK; while ! test -e {go}; do sleep 0.05; done; exit 9"
    words = ("--subnet=10.78.0.0/24", "--max-restarts=1", "--on-node-loss=fail")
    with shell_job(f"{hosts[1].address}:29400", "2", script, *words) as nodes:
        for rank, host in enumerate(hosts):
            nodes.start(f"--node-rank={rank}", on=host.command)
        assert [node.stdout.readline() for node in nodes.nodes] == ["0\n", "1\n"]
        subprocess.run(hosts[0].command("ip", "address", "flush", "dev", "data0"), check=True)
        go.touch()
        done = nodes.finish_with(73, 73)
    assert all("cannot listen on 10.78.0.1:" in node.stderr for node in done), done


def test_a_host_that_does_not_reach_itself_is_named(tmp_path: Path) -> None:
    """The loopback interface of a new network namespace is down."""
    if reason := namespaces.why_not():
        pytest.skip(reason)
    go = tmp_path / "go"
    script = f"while ! test -e {go}; do sleep 0.05; done"
    with Job(["--reach-timeout=0.1", "--no-python"], ["sh", "-c", script]) as job:
        node = job.start(on=lambda *words: ["unshare", "--net", *words])
        assert node.stderr is not None
        line = node.stderr.readline()
        go.touch()
        (done,) = job.finish()
    assert "does not reach the workers' store, which is on this host" in line
    assert "cannot connect to 127.0.0.1:" in line
    assert done.returncode == 0
