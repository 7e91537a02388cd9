"""The key-value servers that the store scenes compare."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from harness.figures import Findings, Missing
from harness.processes import read_line, running
from scenes import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    protocol: str  # the name for store_load and the other load programs
    port: int
    pid: int


@contextlib.contextmanager
def server(plan: Plan, name: str) -> Iterator[Server]:
    """One server on a free port of loopback: "elastic", "torch", "redis" or "echo"."""
    if name == "redis":
        with _redis(plan) as found:
            yield found
        return
    if name == "torch":
        plan.programs.require_module("torch")
        command = plan.programs.client("torch_server.py")
    else:
        program = "store_daemon" if name == "elastic" else "echo_server"
        command = [plan.programs.built(program)]
    with running(command) as child:
        port = int(read_line(child))
        protocol = "echo" if name == "echo" else "tcpstore"
        yield Server(name=name, protocol=protocol, port=port, pid=child.pid)


@contextlib.contextmanager
def _redis(plan: Plan) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Memory only, no background saving, and room for the connections of the memory scene.
    settings = {
        "port": str(port),
        "bind": "127.0.0.1",
        "save": "",
        "appendonly": "no",
        "maxclients": "20000",
        "loglevel": "warning",
    }
    command = [plan.programs.installed("redis-server")]
    for key, value in settings.items():
        command += [f"--{key}", value]
    with running(command, terminate=True) as child:
        _wait_for_listener(port)
        yield Server(name="redis", protocol="redis", port=port, pid=child.pid)


def _wait_for_listener(port: int, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def cores_awake(plan: Plan) -> Iterator[None]:
    """Keeps every core awake, for scenes whose round trips take microseconds.

    Waking a core takes longer than such a round trip, and which round trip includes it is chance.
    """
    with contextlib.ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            stack.enter_context(running(plan.programs.client("busy.py"), terminate=True))
        yield


@contextlib.contextmanager
def servers(plan: Plan, names: tuple[str, ...], findings: Findings) -> Iterator[list[Server]]:
    """The named servers that are installed on this machine, all running."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in names:
            try:
                found.append(stack.enter_context(server(plan, name)))
            except Missing as missing:
                findings.skip(name, missing)
        yield found
