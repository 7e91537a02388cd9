"""Jobs that survive the loss of their coordinator: real agents, each on a loopback address of its
own, which counts as a host.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from elastic import observe

from support.launching import DEADLINE_S, Job, free_endpoint, marked, shell_job

# A worker that prints its place, and runs until it is stopped.
WORKER = (
    "echo works $ELASTIC_ROUND $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $NODE $$; exec sleep 1000"
)


class Place(NamedTuple):
    round: int
    world_size: int
    restarts: int
    node: str
    pid: int


class Nodes:
    """A job whose nodes are started one by one, each at 127.0.0.<number>."""

    def __init__(
        self,
        job: Job,
        host: int = 1,
        conf: str = "voters=3",
        on: Callable[[int], Callable[..., list[str]]] | None = None,
        **environ: str,
    ) -> None:
        """``on``: what prefixes the command of each node, as of ``Job.start()``."""
        self.job, self.on = job, on
        self.host, self.conf, self.environ = host, conf, environ
        self.endpoint = ""
        self.options: Sequence[str] = ()
        self.finds_host = False  # the other nodes may listen at further endpoints
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.logs: dict[str, str] = {}
        self.latest: dict[str, Place] = {}

    def start(self, *numbers: int) -> None:
        for number in numbers:
            address = f"127.0.0.{number}"
            is_host = str(number == self.host).lower()
            last_call = "" if "last_call_timeout" in self.conf else "last_call_timeout=100,"
            conf = f"--rdzv-conf={last_call}is_host={is_host},{self.conf}"
            if self.finds_host and number != self.host:
                conf = f"--rdzv-conf={last_call}{self.conf}"
            words = (f"--local-addr={address}", conf, *self.options)
            on = self.on(number) if self.on is not None else None
            self.processes[address] = self.job.start(*words, on=on, NODE=address, **self.environ)

    def place(self, address: str) -> Place:
        """The next place of the node's worker."""
        stdout = self.processes[address].stdout
        assert stdout is not None
        for line in stdout:
            if line.startswith("works "):
                _, number, size, restarts, node, pid = line.split()
                place = Place(int(number), int(size), int(restarts), node, int(pid))
                self.latest[address] = place
                return place
        raise AssertionError(f"{address}: {self.log(address)}")

    def places(self, *addresses: str) -> dict[str, Place]:
        return {address: self.place(address) for address in addresses}

    def world(self, *addresses: str) -> tuple[int, int]:
        """Number and size of the next round of these nodes, which is the same on each."""
        (found,) = {place[:2] for place in self.places(*addresses).values()}
        return found

    def size(self, *addresses: str) -> int:
        """The size of the next round of each of these nodes."""
        (found,) = {place.world_size for place in self.places(*addresses).values()}
        return found

    def await_log(self, address: str, pattern: str) -> re.Match[str]:
        """Reads the node's log until a line matches."""
        stderr = self.processes[address].stderr
        assert stderr is not None
        for line in stderr:
            self.logs[address] = self.logs.get(address, "") + line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{address}: no {pattern!r} in {self.logs.get(address)}")

    def log(self, address: str) -> str:
        stderr = self.processes[address].stderr
        assert stderr is not None
        self.logs[address] = self.logs.get(address, "") + stderr.read()
        return self.logs[address]

    def kill(self, *addresses: str) -> None:
        """Ends all processes of the nodes at the same moment: none can send a message after the
        end of another.
        """
        marks = {f"NODE={address}".encode() for address in addresses}
        pids = []
        for pid in marked(self.job._environ):
            with suppress(OSError):
                if marks & set(Path("/proc", str(pid), "environ").read_bytes().split(b"\0")):
                    pids.append(pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):  # it ended with its guardian
                    os.kill(pid, number)
        for address in addresses:
            self.processes[address].wait(DEADLINE_S)

    def stop(self, *addresses: str) -> None:
        for address in addresses:
            self.processes[address].send_signal(signal.SIGTERM)


def job(endpoint: str, nodes: str = "2:3", run_id: str = "job") -> Job:
    return shell_job(endpoint, nodes, WORKER, "--max-restarts=0", run_id=run_id)


REPLICATED = "survives the loss of any one host"


# Each attempt to elect a coordinator has a term; on a busy host the first one may be too slow.
ELECTED = r"now \(term ([2-9]|\d\d+)\)"


@contextmanager
def replicated_job(*options: str, **environ: str) -> Iterator[Nodes]:
    """Three nodes whose round runs; each keeps the job's record, and the first one coordinates."""
    endpoint = free_endpoint()
    with job(endpoint) as started:
        nodes = Nodes(started, **environ)
        nodes.endpoint, nodes.options = endpoint, options
        nodes.start(1, 2, 3)
        nodes.places("127.0.0.1", "127.0.0.2", "127.0.0.3")
        nodes.await_log("127.0.0.1", REPLICATED)
        yield nodes


@contextmanager
def three_endpoints() -> Iterator[Nodes]:
    """As replicated_job(), whose nodes know an endpoint on the host of each."""
    port = free_endpoint().rpartition(":")[2]
    endpoints = ",".join(f"127.0.0.{number}:{port}" for number in (1, 2, 3))
    with job(endpoints) as started:
        nodes = Nodes(started)
        nodes.endpoint, nodes.finds_host = endpoints, True
        nodes.start(1)
        nodes.await_log("127.0.0.1", "waiting at .*: 1 of at least 2")
        nodes.start(2, 3)
        nodes.places("127.0.0.1", "127.0.0.2", "127.0.0.3")
        nodes.await_log("127.0.0.1", REPLICATED)
        yield nodes


def snapshot(endpoint: str) -> dict[str, Any]:
    with observe.connect(endpoint, "job") as seen:
        found = seen.first(DEADLINE_S)
    assert found is not None
    return found


def witness_endpoint() -> str:
    """An address that counts as a third host."""
    return "127.0.0.9:" + free_endpoint().rpartition(":")[2]
