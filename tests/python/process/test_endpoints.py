"""Which node hosts the coordinator, and how nodes reach each other, by the names and addresses that
hosts have: aliases, further interfaces, IPv6, names that appear late, resolvers that do not answer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import namespaces
import pytest

from support.launching import DEADLINE_S, shell_job

pytestmark = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())

# Prints the address of the workers' store, to which it has connected.
WORKER = "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo $RANK $WORLD_SIZE $MASTER_ADDR"
LOCALHOST = "127.0.0.1 localhost\n"
PORT = 29400


class Pair:
    """Two hosts, each with its own hosts file and with resolvers that do not answer."""

    def __init__(self, network: namespaces.Network, folder: Path) -> None:
        self.hosts = [network.add_host() for _ in range(2)]
        self.names = [folder / f"hosts{number}" for number in range(2)]
        self._resolvers = folder / "resolv.conf"
        self._resolvers.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.set_names(LOCALHOST, LOCALHOST)

    def set_names(self, *texts: str) -> None:
        for path, text in zip(self.names, texts, strict=True):
            path.write_text(text)

    def ip(self, number: int, *words: str) -> None:
        subprocess.run(self.hosts[number].command("ip", *words), check=True, timeout=DEADLINE_S)

    def on(self, number: int) -> Callable[..., list[str]]:
        script = (
            f"mount --bind {self.names[number]} /etc/hosts && "
            f'mount --bind {self._resolvers} /etc/resolv.conf && exec "$@"'
        )
        return lambda *command: self.hosts[number].command(
            "unshare", "--mount", "sh", "-c", script, "host", *command
        )

    def run(self, endpoint: str, *words: str, worker: str = WORKER) -> tuple[list[str], list[str]]:
        """Runs a job of both; returns what its workers and its agents have printed."""
        with shell_job(endpoint, "2", worker, *words, shell="bash") as job:
            for number in range(2):
                job.start(f"--node-rank={number}", on=self.on(number))
            done = job.succeed()
        logs = [node.stderr for node in done]
        return [node.stdout.strip() for node in done], logs


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with namespaces.Network() as network:
        yield Pair(network, tmp_path)


def second_address(pair: Pair) -> str:
    for number in range(2):
        pair.ip(number, "address", "add", f"10.88.0.{number + 1}/24", "dev", namespaces.INTERFACE)
    return f"10.88.0.1:{PORT}"


def second_interface(pair: Pair) -> str:
    pair.ip(0, "link", "add", "ib0", "type", "veth", "peer", "name", "ib1")
    pair.ip(0, "address", "add", "10.99.0.1/32", "dev", "ib0")
    pair.ip(0, "link", "set", "ib0", "up")
    pair.ip(1, "route", "add", "10.99.0.1", "via", pair.hosts[0].address)
    return f"10.99.0.1:{PORT}"


def name_of_the_hosts_file(pair: Pair) -> str:
    line = f"{pair.hosts[0].address} train-0.job.svc\n"
    pair.set_names(LOCALHOST + line, LOCALHOST + line)
    return f"train-0.job.svc:{PORT}"


def own_name_at_a_loopback_address(pair: Pair) -> str:
    # As Debian's installer writes it on the host itself.
    pair.set_names(LOCALHOST + "127.0.1.1 node0\n", f"{LOCALHOST}{pair.hosts[0].address} node0\n")
    return f"node0:{PORT}"


def mapped_address(pair: Pair) -> str:
    return f"[::ffff:{pair.hosts[0].address}]:{PORT}"


@pytest.mark.parametrize(
    "scene",
    [
        second_address,
        second_interface,
        name_of_the_hosts_file,
        own_name_at_a_loopback_address,
        mapped_address,
    ],
)
def test_the_agent_whose_host_has_the_endpoint_hosts_the_coordinator(
    pair: Pair, scene: Callable[[Pair], str]
) -> None:
    printed, _ = pair.run(scene(pair))
    (_, _, first), (_, _, second) = (line.split() for line in printed)
    assert [line.split()[:2] for line in printed] == [["0", "2"], ["1", "2"]]
    assert first == second
    assert first.replace(".", "").isdigit(), "numeric, so that no node resolves it"


def set_ipv6(pair: Pair, keeps_ipv4: bool) -> None:
    for number in range(2):
        if not keeps_ipv4:
            pair.ip(number, "-4", "address", "flush", "dev", namespaces.INTERFACE)
        address = f"fd77::{number + 1}/64"
        pair.ip(number, "-6", "address", "add", address, "dev", namespaces.INTERFACE, "nodad")


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this kernel has no IPv6")
@pytest.mark.parametrize(
    ("lines", "endpoint", "keeps_ipv4", "master"),
    [
        ("", "[fd77::1]:29400", False, "fd77::1"),
        ("fd77::1 node0\n", "node0:29400", False, "fd77::1"),
        ("10.77.0.1 node0\n", "node0:29400", True, "10.77.0.1"),
        ("fd77::1 node0\n10.77.0.1 node0\n", "node0:29400", True, None),
        # Nothing answers at the first address.
        ("fd77::99 node0\n10.77.0.1 node0\n", "node0:29400", True, "10.77.0.1"),
    ],
)
def test_endpoints_of_both_families(
    pair: Pair, lines: str, endpoint: str, keeps_ipv4: bool, master: str | None
) -> None:
    set_ipv6(pair, keeps_ipv4)
    pair.set_names(LOCALHOST + lines, LOCALHOST + lines)
    printed, _ = pair.run(endpoint)
    addresses = {line.split()[2] for line in printed}
    assert len(addresses) == 1
    assert master is None or addresses == {master}


# Answers no query, and appends one line for each.
RESOLVER = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
    listener.bind(("127.0.0.1", 53))
    print("ready", flush=True)
    while True:
        listener.recv(4096)
        print("query", flush=True)
"""


def test_numeric_endpoints_need_no_resolver(pair: Pair) -> None:
    resolvers = [
        subprocess.Popen(
            host.command(sys.executable, "-c", RESOLVER), stdout=subprocess.PIPE, text=True
        )
        for host in pair.hosts
    ]
    own = f"{LOCALHOST}127.0.0.1 {socket.gethostname()}\n"  # for which workers have to ask
    pair.set_names(own, own)
    try:
        for resolver in resolvers:
            assert resolver.stdout.readline() == "ready\n"
        printed, _ = pair.run(f"{pair.hosts[0].address}:{PORT}", worker="echo $MASTER_ADDR")
        assert printed == [pair.hosts[0].address] * 2
        # Each resolver would have received a query for the name of an address.
        reverse = ("getent", "hosts", "10.77.0.99")
        for number in range(2):
            subprocess.run(pair.on(number)(*reverse), check=False, timeout=DEADLINE_S)
        for resolver in resolvers:
            assert resolver.stdout.readline() == "query\n"
            resolver.kill()
            asked = resolver.stdout.read().count("query")
            assert asked == 0, "the agents have asked as well"
    finally:
        for resolver in resolvers:
            resolver.kill()
            resolver.communicate(timeout=DEADLINE_S)


def test_a_name_that_appears_later_is_found(pair: Pair) -> None:
    with shell_job(f"node0:{PORT}", "2", WORKER, shell="bash") as job:
        started = [job.start(on=pair.on(number)) for number in range(2)]
        for node in started:
            assert "cannot resolve node0" in node.stderr.readline()
        line = f"{LOCALHOST}{pair.hosts[0].address} node0\n"
        pair.set_names(line, line)  # the same files, which are mounted
        done = job.succeed()
    assert sorted(node.stdout.split()[0] for node in done) == ["0", "1"]


def test_the_host_of_the_endpoint_may_start_last_and_another_one_have_rank_0(pair: Pair) -> None:
    with shell_job(f"{pair.hosts[0].address}:{PORT}", "2", WORKER, shell="bash") as job:
        early = job.start("--node-rank=0", on=pair.on(1))
        assert "cannot connect" in early.stderr.readline()
        job.start("--node-rank=1", on=pair.on(0))
        done = job.succeed()
    address = pair.hosts[1].address
    assert [node.stdout for node in done] == [f"0 2 {address}\n", f"1 2 {address}\n"]
