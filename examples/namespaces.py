"""Simulates several machines: network namespaces with one address each, connected by a switch.

    with Network() as network:
        first, second = network.add_host(), network.add_host()
        subprocess.run(first.command("ping", "-c1", second.address))
        second.unplug()

Needs root, iproute2 and util-linux; ``why_not()`` returns what is missing. A namespace exists while
a helper process runs in it, which ends with this process, so that no namespace is left behind.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

INTERFACE = "eth0"
SWITCH = "switch"  # to which new hosts are connected
PREFIX = "10.77.0."
HOSTS_MAX = 250


def why_not() -> str:
    """Why namespaces cannot be created here; "" if they can."""
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "name", "switch", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no network namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Host:
    """One machine: a namespace with loopback and one interface."""

    def __init__(self, network: Network, pid: int, address: str, port: str) -> None:
        self.address = address
        self._network = network
        self._pid = pid
        self._port = port

    def command(self, *argv: str) -> list[str]:
        """The command that runs a program on this host, without an intermediate process."""
        return ["nsenter", f"--net=/proc/{self._pid}/ns/net", "--", *argv]

    def unplug(self) -> None:
        """Drops all traffic of this host, without closing any connection."""
        self._network.switch("link", "set", self._port, "down")

    def plug_in(self) -> None:
        self._network.switch("link", "set", self._port, "up")

    def add_interface(self, name: str, address: str, switch: str) -> None:
        """A second interface with this address ("10.78.0.1/24"), at a switch of its own network."""
        port = f"{self._port}-{name}"
        self._network.switch("link", "add", port, "type", "veth", "peer", "name", name,
                             "netns", str(self._pid))  # fmt: skip
        self._network.switch("link", "set", port, "master", switch, "up")
        _ip(self._pid, ("address", "add", address, "dev", name))
        _ip(self._pid, ("link", "set", name, "up"))

    def unplug_interface(self, name: str) -> None:
        """As unplug(), of an interface that was added."""
        self._network.switch("link", "set", f"{self._port}-{name}", "down")

    def connect_to(self, switch: str) -> None:
        """Moves this host's cable to another switch of the network."""
        self._network.switch("link", "set", self._port, "master", switch)


class Network:
    """A switch in its own namespace, and the hosts at its ports."""

    def __init__(self) -> None:
        self._cleanup = ExitStack()
        self._switch = 0
        self._hosts = 0

    def __enter__(self) -> Network:
        self._switch = self._hold_namespace()
        self.add_switch(SWITCH)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    def add_host(self) -> Host:
        if self._hosts == HOSTS_MAX:
            raise RuntimeError(f"a network has at most {HOSTS_MAX} hosts")
        self._hosts += 1
        number, pid = self._hosts, self._hold_namespace()
        port, address = f"port{number}", f"{PREFIX}{number}"
        self.switch("link", "add", port, "type", "veth", "peer", "name", INTERFACE,
                    "netns", str(pid))  # fmt: skip
        self.switch("link", "set", port, "master", SWITCH, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{address}/24", "dev", INTERFACE),
            ("link", "set", INTERFACE, "up"),
        ):
            _ip(pid, words)
        return Host(self, pid, address, port)

    def add_switch(self, name: str) -> None:
        """A switch that is not connected to the others."""
        self.switch("link", "add", name, "type", "bridge")
        self.switch("link", "set", name, "up")

    def split(self, *hosts: Host) -> None:
        """Separates these hosts from the others, until each is connected to SWITCH again."""
        self.add_switch("other")
        for host in hosts:
            host.connect_to("other")

    def switch(self, *words: str) -> None:
        _ip(self._switch, words)

    def _hold_namespace(self) -> int:
        """The pid of a process in a new namespace, which ends when its standard input does."""
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdin is not None and holder.stdout is not None
        self._cleanup.callback(holder.wait)
        self._cleanup.callback(holder.stdout.close)
        self._cleanup.callback(holder.stdin.close)
        if holder.stdout.readline() != b"\n":  # printed when the namespace exists
            raise RuntimeError(f"no network namespace: {why_not()}")
        return holder.pid


def _ip(pid: int, words: Sequence[str]) -> None:
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "--", "ip", *words], check=True)
