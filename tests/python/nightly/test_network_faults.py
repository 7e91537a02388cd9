"""--node-check=network between hosts that are network namespaces, with faults in the network."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import namespaces
import pytest

from support.coordinators import program
from support.launching import (
    Process,
    await_line,
    clean_environment,
    free_port,
    shell_job,
    started,
)

FOUND = re.compile(r"check network of host (\w+)( is unknown)?: (.*)")
OVER = re.compile(r"the network between (\d+) nodes was checked in ([\d.]+) (ms|s): (.*)")


class Hosts:
    """Hosts named h1, h2, …, and one for the coordinator, which the faults leave alone."""

    def __init__(self, network: namespaces.Network, number: int) -> None:
        self.coordinator = network.add_host()
        self.nodes = [network.add_host() for _ in range(number)]

    def on(self, number: int) -> Callable[..., list[str]]:
        """The prefix of a command that runs on this host, and has its name."""
        rename = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"h{number}"]
        return lambda *command: self.nodes[number - 1].command(*rename, *command)

    def run(self, number: int, *command: str) -> None:
        subprocess.run(self.nodes[number - 1].command(*command), check=True)

    def cut(self, number: int, *others: int) -> None:
        """This host sends nothing to those."""
        for other in others:
            address = self.nodes[other - 1].address
            self.run(number, "ip", "route", "add", "blackhole", f"{address}/32")

    def isolate(self, number: int) -> None:
        self.cut(number, *(n for n in range(1, len(self.nodes) + 1) if n != number))


@contextmanager
def hosts(number: int) -> Iterator[Hosts]:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with namespaces.Network() as network:
        yield Hosts(network, number)


@contextmanager
def coordinator_on(host: namespaces.Host) -> Iterator[tuple[str, Process]]:
    endpoint = f"{host.address}:{free_port()}"
    command = host.command(program(), "--bind", endpoint)
    with started(command, environ=clean_environment()) as process:
        await_line(process, "listening on")
        yield endpoint, process
        process.kill()


@contextmanager
def throttled(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stops the process for most of the time: what it sends and receives is slow."""
    over = threading.Event()

    def throttle() -> None:
        while process.poll() is None and not over.is_set():
            process.send_signal(signal.SIGSTOP)
            over.wait(0.06)
            process.send_signal(signal.SIGCONT)
            over.wait(0.001)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def check(place: Hosts, least: int, slow: int) -> tuple[dict[str, str], float]:
    """The verdict about each host that is not good, and the seconds that the check took."""
    number = len(place.nodes)
    with coordinator_on(place.coordinator) as (endpoint, coordinator):
        options = ["--node-check=network", "--rdzv-conf=last_call_timeout=1"]
        with shell_job(endpoint, f"{least}:{number}", "exit 0", *options) as nodes:
            for one in range(1, number + 1):
                nodes.start(on=place.on(one))
            await_line(coordinator, "checking the network")
            with throttled(nodes.nodes[slow - 1]) if slow else nullcontext():
                over = await_line(coordinator, OVER.pattern)
            codes = [done.returncode for done in nodes.finish()]
        coordinator.terminate()
        _, log = coordinator.communicate(timeout=60)
    print(over[0], log, codes, sep="\n", file=sys.stderr)
    assert int(over[1]) == number
    found = {match[1]: "unknown" if match[2] else "bad" for match in FOUND.finditer(log)}
    # A bad host is refused, and the others run.
    expected = [79 if found.get(f"h{one}") == "bad" else 0 for one in range(1, number + 1)]
    assert codes == expected
    return found, float(over[2]) / (1000 if over[3] == "ms" else 1)


Fault = Callable[[Hosts], None]


def nothing(_: Hosts) -> None: ...


def isolated(*numbers: int) -> Fault:
    def make(place: Hosts) -> None:
        for one in numbers:
            place.isolate(one)

    return make


@pytest.mark.parametrize(
    ("number", "fault", "slow", "expected"),
    [
        pytest.param(16, nothing, 0, {}, id="good"),
        pytest.param(16, nothing, 7, {"h7": "bad"}, id="slow"),
        pytest.param(15, nothing, 15, {"h15": "bad"}, id="odd"),
        pytest.param(3, nothing, 3, {"h3": "bad"}, id="slow-of-three"),
        pytest.param(
            16, lambda place: place.cut(5, 6), 0, {"h5": "unknown", "h6": "unknown"}, id="link"
        ),
        pytest.param(16, isolated(3, 12), 0, {"h3": "bad", "h12": "bad"}, id="two"),
        pytest.param(16, isolated(3, 4), 0, {"h3": "bad", "h4": "bad"}, id="one-pair"),
        pytest.param(16, isolated(3), 9, {"h3": "bad", "h9": "bad"}, id="two-kinds"),
        pytest.param(3, isolated(2), 0, {"h2": "bad"}, id="three"),
        pytest.param(2, isolated(2), 0, {"h1": "unknown", "h2": "unknown"}, id="a-pair"),
    ],
)
def test_fault_is_named(number: int, fault: Fault, slow: int, expected: dict[str, str]) -> None:
    with hosts(number) as place:
        fault(place)
        bad = sum(verdict == "bad" for verdict in expected.values())
        found, seconds = check(place, number - bad, slow)
        assert found == expected
        assert seconds <= 10
