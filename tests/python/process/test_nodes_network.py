"""Nodes on separate hosts whose network fails."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from elastic import _C

from support.launching import Job, run_program, shell_job

pytestmark = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())


@pytest.fixture
def hosts() -> Iterator[list[namespaces.Host]]:
    with namespaces.Network() as network:
        yield [network.add_host() for _ in range(3)]


def job(hosts: list[namespaces.Host], go: Path, nnodes: str, conf: str) -> Job:
    """Its workers print the world size and then, until they may end, the time."""
    script = f"echo world $WORLD_SIZE; until test -e {go}; do date +%s.%N; sleep 0.05; done"
    words = (f"--rdzv-conf={conf}", "--shutdown-timeout=5")
    return shell_job(f"{hosts[0].address}:29400", nnodes, script, *words)


def worlds(node: subprocess.Popen[str]) -> Iterator[str]:
    for line in node.stdout:
        if line.startswith("world "):
            yield line.split()[1]


def wait_seconds(node: subprocess.Popen[str], seconds: float) -> None:
    """Reads until a worker of the node has printed a time that is ``seconds`` later than now."""
    until = time.time() + seconds
    for line in node.stdout:
        assert not line.startswith("world")
        if float(line) >= until:
            return
    raise AssertionError("the workers have ended")


def test_a_short_interruption_changes_nothing(hosts: list[namespaces.Host], tmp_path: Path) -> None:
    go = tmp_path / "go"
    with job(hosts, go, "2:3", "node_timeout=20") as nodes:
        started = [nodes.start(on=host.command) for host in hosts]
        assert [next(worlds(node)) for node in started] == ["3", "3", "3"]
        hosts[1].unplug()
        wait_seconds(started[1], 1.0)
        hosts[1].plug_in()
        wait_seconds(started[1], 1.0)
        go.touch()
        done = nodes.succeed()
    assert not [line for node in done for line in node.stdout.splitlines() if "world" in line]


def test_silent_node_is_lost_and_may_rejoin(hosts: list[namespaces.Host], tmp_path: Path) -> None:
    go = tmp_path / "go"
    with job(hosts, go, "2:3", "node_timeout=5,settle=0") as nodes:
        started = [nodes.start(on=host.command) for host in hosts]
        sizes = [worlds(node) for node in started]
        assert [next(world) for world in sizes] == ["3", "3", "3"]
        hosts[2].unplug()
        assert [next(world) for world in sizes[:2]] == ["2", "2"]
        hosts[2].plug_in()
        assert [next(world) for world in sizes] == ["3", "3", "3"]
        go.touch()
        done = nodes.succeed()
    lost = f"{socket.gethostname()}_{started[2].pid}"
    assert lost in done[0].stderr and "was lost" in done[0].stderr


# Asks a store for the number of its keys: VALIDATE, then NUMKEYS. Prints what it answers.
ASK_STORE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as client:
    try:
        client.sendall(bytes.fromhex("00cef7853c07"))
        print(len(client.recv(8)))
    except (BrokenPipeError, ConnectionResetError):
        print(0)
"""


def test_stores_of_a_job_with_a_token_serve_its_hosts_only(
    hosts: list[namespaces.Host], tmp_path: Path
) -> None:
    try:
        _C.check_token("job", token="x" * 32)
    except _C.ConfigError as error:
        pytest.skip(str(error))
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    go = tmp_path / "go"
    script = f"echo $MASTER_ADDR $MASTER_PORT; until test -e {go}; do sleep 0.05; done"
    endpoint = f"{hosts[0].address}:29400"
    with shell_job(endpoint, "2", script, f"--token-file={token}") as nodes:
        started = [nodes.start(on=host.command, LOGLEVEL="INFO") for host in hosts[:2]]
        masters = []
        for node in started:
            masters.append(node.stdout.readline().split())
        assert masters[0] == masters[1]
        ask = [sys.executable, "-c", ASK_STORE]
        answers = [
            run_program(host.command(*ask, *store), check=True).stdout.strip()
            for store in (masters[0], [hosts[0].address, "29400"])
            for host in hosts
        ]  # fmt: skip
        go.touch()
        done = nodes.succeed()
    assert answers == ["8", "8", "0"] * 2
    refused = [line for node in done for line in node.stderr.splitlines() if "was refused" in line]
    assert len(refused) == 2, [node.stderr for node in done]
    assert all(f"{hosts[2].address}: a request to the" in line for line in refused)
