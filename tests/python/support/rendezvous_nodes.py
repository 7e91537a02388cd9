"""Nodes of a rendezvous as separate processes, and the servers that they need."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.launching import DEADLINE_S, clean_environment, free_port
from support.paths import STUBS

NODE = str(STUBS / "stub_rendezvous_node.py")


class Node:
    """One process; it replies to requests in order."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, NODE, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        # If no reply arrives in time, the process is killed and the reader gets the end of file.
        self._deadline = threading.Timer(DEADLINE_S, self._process.kill)
        self._deadline.start()

    def ask(self, *words: str) -> Node:
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self

    def answer(self) -> str:
        return self._process.stdout.readline().rstrip("\n")

    def call(self, *words: str) -> str:
        return self.ask(*words).answer()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._deadline.cancel()
        self._process.kill()
        self._process.communicate()


@contextmanager
def nodes(count: int, *words: str) -> Iterator[list[Node]]:
    started = [Node(*words) for _ in range(count)]
    try:
        yield started
    finally:
        for node in started:
            node.kill()


@contextmanager
def etcd_server(directory: Path) -> Iterator[str]:
    """Runs a real etcd and yields its endpoint."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed")
    client, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
    process = subprocess.Popen(
        [
            *(program, "--data-dir", str(directory / "etcd"), "--name", "test"),
            *("--listen-client-urls", f"http://{client}"),
            *("--advertise-client-urls", f"http://{client}"),
            *("--listen-peer-urls", f"http://{peer}"),
            *("--initial-advertise-peer-urls", f"http://{peer}"),
            *("--initial-cluster", f"test=http://{peer}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "ready to serve" in line:
            break
    else:
        pytest.fail("etcd did not start: " + "".join(lines[-5:]))
    drain = threading.Thread(target=process.stderr.read)
    drain.start()
    try:
        yield client
    finally:
        process.kill()
        process.wait()
        drain.join()
        process.stderr.close()
