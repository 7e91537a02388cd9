"""Ports that other jobs and other programs of a host take, and what strangers send to ours."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from elastic import StoreServer

from support.launching import (
    DEADLINE_S,
    assert_all_ended,
    clean_environment,
    free_endpoint,
    launch,
    launcher_command,
    shell_job,
)

USES_STORE = ["--no-python", "bash", "-c", "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT"]
JOBS = 20


@pytest.mark.alone
def test_twenty_jobs_of_one_host_start_at_once() -> None:
    environ = clean_environment()
    command = launcher_command("--standalone", "--nproc-per-node=2", *USES_STORE)
    jobs = [
        subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        for _ in range(JOBS)
    ]
    ends = [(job.communicate(timeout=DEADLINE_S)[1], job.returncode) for job in jobs]
    assert ends == [("", 0)] * JOBS
    assert_all_ended(environ)


@contextlib.contextmanager
def grabbing_neighbour() -> Iterator[None]:
    """Threads that take and release free ports of 127.0.0.1 all the time."""
    ends = threading.Event()

    def grab() -> None:
        while not ends.is_set():
            with contextlib.ExitStack() as taken:
                for _ in range(200):
                    taken.enter_context(socket.create_server(("127.0.0.1", 0)))

    threads = [threading.Thread(target=grab) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


@pytest.mark.alone
def test_no_port_is_lost_to_a_neighbour_that_takes_free_ports() -> None:
    # Each job opens two ports by itself in each round: the coordinator's and the store's.
    words = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--nproc-per-node=2"]

    def run(_: int) -> tuple[int, str]:
        done = launch(*words, *USES_STORE)
        return done.returncode, done.stderr

    with grabbing_neighbour(), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(JOBS))) == [(0, "")] * JOBS


# What scanners and other programs send: a web request, a TLS hello, zeros, noise, the magic of the
# store with a length of a gigabyte, nothing, and a part of our own handshake.
STRANGERS = [
    b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n",
    bytes.fromhex("16030100c8010000c40303") + bytes(190),
    bytes(4096),
    os.urandom(4096),
    bytes.fromhex("00cef7853c") + b"\x01" + (1 << 30).to_bytes(8, "little"),
    b"",
    bytes.fromhex("00cef7"),
    b"SSH-2.0-scanner\r\n",
]


def pester(port: int) -> None:
    """Sends each of these; ends when the server has closed the connection, or by closing it."""
    for turn in range(3):
        for text in STRANGERS:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as stranger,
            ):
                stranger.sendall(text)
                if turn == 0:
                    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1] + 7 * [0]))
                elif turn == 1:
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4096):
                        continue


def test_strangers_at_the_ports_do_not_disturb_a_job(tmp_path: Path) -> None:
    endpoint = free_endpoint()
    script = (
        "echo store $MASTER_PORT; until test -e $GO; do sleep 0.05; done; "
        "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT"
    )
    nodes = shell_job(endpoint, "2", script, "--rdzv-conf=node_timeout=10", shell="bash")
    with nodes, contextlib.ExitStack() as idle:
        started = [nodes.start(GO=str(tmp_path / "go")) for _ in range(2)]
        ports = {int(endpoint.rpartition(":")[2])}
        for node in started:
            ports.add(int(node.stdout.readline().split()[1]))
        for port in ports:
            pester(port)
            for _ in range(100):
                with contextlib.suppress(OSError):
                    peer = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
                    idle.callback(peer.close)
            pester(port)
        status = launch("status", endpoint, "--json", "--timeout=60")
        assert '"phase": "running", ' in status.stdout, status.stderr
        assert '"round": 0, ' in status.stdout
        (tmp_path / "go").touch()
        done = nodes.succeed()
    assert not any("lost" in node.stderr for node in done)


def test_a_scanner_does_not_flood_the_log() -> None:
    endpoint = free_endpoint()
    script = "echo ready; exec sleep 1000"
    with shell_job(endpoint, "1:2", script, "--rdzv-conf=last_call_timeout=0") as nodes:
        node = nodes.start()
        assert node.stdout.readline() == "ready\n"
        for _ in range(20):
            pester(int(endpoint.rpartition(":")[2]))
        node.send_signal(signal.SIGTERM)
        (done,) = nodes.finish_with(143)
    assert len(done.stderr.splitlines()) < 50, "the log is not flooded"


# Connects all clients before it handles any reply. Each asks for the number of keys.
STORM = """
import resource, selectors, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
events = selectors.DefaultSelector()
clients = [socket.socket() for _ in range(count)]  # open until the end
for client in clients:
    client.setblocking(False)
    client.connect_ex((host, port))
    events.register(client, selectors.EVENT_WRITE)
answered = failed = 0
while answered + failed < count:
    for key, ready in events.select():
        client = key.fileobj
        try:
            if ready & selectors.EVENT_WRITE:
                client.sendall(bytes.fromhex("00cef7853c07"))
                events.modify(client, selectors.EVENT_READ)
                continue
            failed += len(client.recv(8)) != 8
            answered += 1
        except OSError:
            failed += 1
        events.unregister(client)
print(answered, failed, flush=True)
sys.stdin.read()
"""


@pytest.mark.alone
def test_a_storm_of_connections_loses_none() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(4000, (hard - 500) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with (
            StoreServer("127.0.0.1", 0) as server,
            subprocess.Popen(
                [sys.executable, "-c", STORM, "127.0.0.1", str(server.port), str(count)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as clients,
        ):
            assert clients.stdout.readline() == f"{count} 0\n"
            assert server.stats().connections == count
            assert server.stats().connections_rejected == 0
            clients.communicate(timeout=DEADLINE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
