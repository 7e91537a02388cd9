"""Shows how a job of several nodes recovers when something is killed during real training.

    python3 examples/watch_it_recover.py              all scenes
    python3 examples/watch_it_recover.py --list       their names
    python3 examples/watch_it_recover.py add-a-node kill-the-host

Each node is a network namespace with its own address; without root the nodes are agents on
localhost. Needs the installed package, torch and scikit-learn (examples/demo.sh creates such an
environment). Exits with 0 if every job succeeded.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import namespaces

DEADLINE_S = 120.0
ACCURACY_MIN = 0.9
EXAMPLES = Path(__file__).parent
LAUNCHER = (sys.executable, "-m", "elastic")
COORDINATOR = Path(sys.executable).with_name("elastic-coordinator")


class Host(Protocol):
    """The host of a node: a namespace, or this machine."""

    address: str

    def command(self, *argv: str) -> list[str]: ...


class ThisMachine:
    """A host when namespaces are not available: a loopback address of this machine."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.address = f"127.0.0.{next(self._numbers) % 254 + 1}"

    def command(self, *argv: str) -> list[str]:
        return list(argv)


class Line(NamedTuple):
    program: str
    text: str | None  # None: the program has closed its output


class Program:
    """A process whose output lines are added to the stage."""

    def __init__(self, name: str, argv: list[str], lines: queue.Queue[Line]) -> None:
        self.name = name
        self._lines = lines
        self.process = subprocess.Popen(
            argv,
            # All nodes share this machine's cores.
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface_of(argv)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(Line(self.name, line.rstrip("\n")))
        self._lines.put(Line(self.name, None))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def interface_of(argv: list[str]) -> str:
    """The interface for gloo; by default it uses the address of the host name, which all share."""
    return namespaces.INTERFACE if argv[0] == "nsenter" else "lo"


class Stage:
    """One job: its hosts, its programs, and their output in one sequence."""

    def __init__(self, new_host: Callable[[], Host], folder: Path) -> None:
        self._new_host = new_host
        self._folder = folder
        self._lines: queue.Queue[Line] = queue.Queue()
        self._programs: dict[str, Program] = {}
        self._stopped: list[Program] = []
        self._started = time.monotonic()
        self._accuracy: float | None = None
        self._port = free_port()
        self._endpoint_host: Host | None = None
        self._endpoint = ""

    def add_host(self) -> Host:
        return self._new_host()

    def set_endpoint_host(self, host: Host) -> None:
        """Sets the host of the endpoint."""
        self._endpoint_host = host
        self._endpoint = f"{host.address}:{self._port}"

    def start_coordinator(self, host: Host, name: str, *options: str) -> None:
        """Starts a separate coordinator; agents started later do not run one."""
        self._endpoint_host = None
        self._start(name, host.command(str(COORDINATOR), "--bind", self._endpoint, *options))

    def start_agent(
        self, host: Host, name: str, nnodes: str, conf: str = "", *options: str
    ) -> None:
        """Starts one worker's agent; `conf` is for --rdzv-conf."""
        # Not needed where each host has its own address: the agents find out themselves.
        if isinstance(host, ThisMachine) or self._endpoint_host is None:
            is_host = f"is_host={str(host is self._endpoint_host).lower()}"
            conf = f"{conf},{is_host}" if conf else is_host
        words = [
            *LAUNCHER,
            *("--nnodes", nnodes, "--max-restarts", "3", "--shutdown-timeout", "5"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "digits"),
            *(("--rdzv-conf", conf) if conf else ()),
            *options,
            *self.training(self._folder),
        ]
        self._start(name, host.command(*words))

    def training(self, folder: Path) -> list[str]:
        """The script and its arguments."""
        return [
            # Slow enough that what a scene does comes before the end, also on a busy machine.
            *(str(EXAMPLES / "train_digits.py"), "--epochs", "8", "--delay-per-step", "0.05"),
            *("--checkpoint", str(folder / "digits.pt"), "--pid-dir", str(folder)),
        ]

    def _start(self, name: str, argv: list[str]) -> None:
        self.log(f"starting {name}")
        self._programs[name] = Program(name, argv, self._lines)

    def kill(self, name: str) -> None:
        """Sends SIGKILL to one program only, not to its children."""
        program = self._programs.pop(name)
        program.process.kill()
        program.process.wait()
        self.log(f"killed {name}, pid {program.process.pid}")

    def stop(self, name: str) -> None:
        """Sends SIGTERM to one program and does not wait for it."""
        self._stopped.append(self._programs.pop(name))
        self._stopped[-1].process.terminate()

    def kill_worker(self, rank: int) -> None:
        pid = int((self._folder / f"rank{rank}.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        self.log(f"killed the worker with rank {rank}, pid {pid}")

    def log(self, what: str) -> None:
        print(f"{time.monotonic() - self._started:6.2f} s  --- {what} ---", flush=True)

    def wait_for(self, pattern: str, unless: str = "$^") -> str:
        """Prints output until a line matches; returns the name of the program that printed it.

        Fails if a line matches `unless` first.
        """
        return self.wait_for_line(pattern, unless).program

    def wait_for_line(self, pattern: str, unless: str = "$^") -> Line:
        wanted, unwanted = re.compile(pattern), re.compile(unless)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            line = self._next(deadline, pattern)
            if line.text is None:
                ended = self._programs.get(line.program)
                if ended is not None:
                    code = ended.process.wait()
                    raise Failed(f"{line.program} exited with {code} before {pattern!r}")
            elif wanted.search(line.text):
                return line
            elif unwanted.search(line.text):
                raise Failed(f"{line.program} printed {line.text!r} before {pattern!r}")

    def finish(self) -> float:
        """Waits until every agent has exited with 0; returns the accuracy."""
        deadline = time.monotonic() + DEADLINE_S
        coordinators = {name for name in self._programs if name.startswith("coordinator")}
        left = set(self._programs) - coordinators
        while left:
            line = self._next(deadline, "the end")
            if line.text is None and line.program in left:
                left.remove(line.program)
                code = self._programs[line.program].process.wait()
                self.log(f"{line.program} exited with {code}")
                if code != 0:
                    raise Failed(f"{line.program} exited with {code}")
        if self._accuracy is None or self._accuracy < ACCURACY_MIN:
            raise Failed(f"the accuracy is {self._accuracy}, expected at least {ACCURACY_MIN}")
        return self._accuracy

    def _next(self, deadline: float, awaited: str) -> Line:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise Failed(f"no program printed {awaited!r} within {DEADLINE_S:g} s") from None
        if line.text is not None:
            now = time.monotonic() - self._started
            print(f"{now:6.2f} s  {line.program:<12} {line.text}", flush=True)
            if found := re.search(r"^finished: .*accuracy ([0-9.]+)", line.text):
                self._accuracy = float(found[1])
        return line

    def close(self) -> None:
        for program in (*self._programs.values(), *self._stopped):
            program.end()


class Failed(Exception):
    """A scene failed."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def kill_a_worker(stage: Stage) -> None:
    """A worker is killed; all workers are restarted, on both nodes."""
    first, second = stage.add_host(), stage.add_host()
    stage.set_endpoint_host(first)
    stage.start_agent(first, "node1", "2")
    stage.start_agent(second, "node2", "2")
    stage.wait_for("^epoch 1 ")
    stage.kill_worker(rank=1)
    stage.wait_for("^continuing with epoch [1-9]")


def kill_an_agent(stage: Stage) -> None:
    """A node is lost; the others continue without it."""
    hosts = [stage.add_host() for _ in range(3)]
    stage.set_endpoint_host(hosts[0])
    for number, host in enumerate(hosts, 1):
        stage.start_agent(host, f"node{number}", "2:3")
    stage.wait_for("^epoch 1 ")
    stage.kill("node3")
    stage.wait_for("^continuing with epoch [1-9]")
    stage.wait_for("with 2 workers")


def add_a_node(stage: Stage) -> None:
    """A node joins late; the job grows."""
    conf = "last_call_timeout=0,settle=0"
    first, second, third = (stage.add_host() for _ in range(3))
    stage.set_endpoint_host(first)
    stage.start_agent(first, "node1", "2:3", conf)
    stage.start_agent(second, "node2", "2:3", conf)
    stage.wait_for("^epoch 1 ")
    stage.start_agent(third, "node3", "2:3", conf)
    stage.wait_for("^continuing with epoch [1-9]")
    stage.wait_for("with 3 workers")


def replace_rank_0(stage: Stage) -> None:
    """The node of rank 0, which has MASTER_ADDR, is lost; another node replaces it."""
    first, second, third = (stage.add_host() for _ in range(3))
    stage.set_endpoint_host(second)
    stage.start_agent(second, "node2", "2", "", "--node-rank=1")
    stage.start_agent(first, "node1", "2", "", "--node-rank=0")
    if stage.wait_for("^epoch 1 ") != "node1":
        raise Failed("rank 0 is not on the node that preferred it")
    stage.kill("node1")
    stage.start_agent(third, "node3", "2")
    stage.wait_for("^continuing with epoch [1-9]")


def restart_the_coordinator(stage: Stage) -> None:
    """The coordinator is killed and restarted without its state: the workers keep running."""
    first, second, third = (stage.add_host() for _ in range(3))
    stage.set_endpoint_host(first)
    stage.start_coordinator(first, "coordinator1")
    stage.start_agent(second, "node1", "2")
    stage.start_agent(third, "node2", "2")
    stage.wait_for("^epoch 0 ")
    stage.kill("coordinator1")
    stage.start_coordinator(first, "coordinator2")
    stage.wait_for("^epoch 2 ", unless="^continuing")
    stage.kill_worker(rank=1)  # the new coordinator must be able to restart the job
    stage.wait_for("^continuing with epoch [2-9]")


def kill_the_host(stage: Stage) -> None:
    """The agent that runs the coordinator is killed and started again at the same address."""
    first, second = stage.add_host(), stage.add_host()
    stage.set_endpoint_host(first)
    stage.start_agent(first, "node1", "2")
    stage.start_agent(second, "node2", "2")
    stage.wait_for("^epoch 1 ")
    stage.kill("node1")
    stage.start_agent(first, "node1-again", "2")
    stage.wait_for("^continuing with epoch [1-9]")


def start_voting_agents(stage: Stage, hosts: Sequence[Host], nodes: str) -> None:
    """Starts agents that keep copies of the job's record, and waits until there are enough."""
    for number, host in enumerate(hosts, 1):
        local = f"--local-addr={host.address}"
        stage.start_agent(host, f"node{number}", nodes, "voters=3", local)
    stage.wait_for("survives the loss of any one host")


def lose_the_coordinators_host(stage: Stage) -> None:
    """The agent that runs the coordinator is lost for good; another node runs it from then on."""
    hosts = [stage.add_host() for _ in range(3)]
    stage.set_endpoint_host(hosts[0])
    start_voting_agents(stage, hosts, "2:3")
    stage.wait_for("^epoch 1 ")
    stage.kill("node1")
    stage.wait_for("the coordinator of the job is at .* now")
    stage.wait_for("^continuing with epoch [1-9]")
    stage.wait_for("with 2 workers")


def lose_the_coordinator(stage: Stage) -> None:
    """A separate coordinator is killed and not started again: the workers keep running."""
    first, *hosts = (stage.add_host() for _ in range(4))
    stage.set_endpoint_host(first)
    stage.start_coordinator(first, "coordinator1", "--voters=3")
    start_voting_agents(stage, hosts, "3")
    stage.wait_for("^epoch 0 ")
    stage.kill("coordinator1")
    stage.wait_for("the coordinator of the job is at .* now")
    stage.wait_for("^epoch 2 ", unless="^continuing")
    stage.kill_worker(rank=1)  # the new coordinator must be able to restart the job
    stage.wait_for("^continuing with epoch [2-9]")


SCENES = {
    function.__name__.replace("_", "-"): function
    for function in (
        kill_a_worker,
        kill_an_agent,
        add_a_node,
        replace_rank_0,
        restart_the_coordinator,
        kill_the_host,
        lose_the_coordinators_host,
        lose_the_coordinator,
    )
}


SomeStage = TypeVar("SomeStage", bound=Stage)


@contextmanager
def stage_of(why_local: str, kind: type[SomeStage]) -> Iterator[SomeStage]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="digits_")))
        new_host: Callable[[], Host] = ThisMachine
        if not why_local:
            new_host = stack.enter_context(namespaces.Network()).add_host
        stage = kind(new_host, folder)
        stack.callback(stage.close)
        yield stage


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help="default: all of them")
    parser.add_argument("--list", action="store_true", help="list the scenes and exit")
    parser.add_argument("--local", action="store_true", help="do not use namespaces")
    arguments = parser.parse_args()
    if arguments.list:
        for name, scene in SCENES.items():
            print(f"{name:<26}{scene.__doc__}")
        return 0
    if unknown := set(arguments.scenes) - set(SCENES):
        parser.error(f"unknown scene: {', '.join(sorted(unknown))} (see --list)")
    why_local = "--local was given" if arguments.local else namespaces.why_not()
    if why_local:
        print(f"all nodes are on localhost: {why_local}", flush=True)
    failed = 0
    for name in arguments.scenes or SCENES:
        print(f"\n=== {name}: {SCENES[name].__doc__}", flush=True)
        with stage_of(why_local, Stage) as stage:
            try:
                SCENES[name](stage)
                print(f"recovered: accuracy {stage.finish()}", flush=True)
            except Failed as failure:
                failed += 1
                print(f"FAILED: {failure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
