"""The checks: each starts jobs, and says what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.agent.server import nccl_ras

from harness import proc
from harness.jobs import free_port

WORKER = Path(__file__).with_name("worker.py")
LIMIT_S = 120.0  # of one job


class Failed(Exception):
    """What was seen is not what was expected."""


class Skipped(Exception):
    """The machine lacks something else."""


@dataclass(frozen=True)
class Machine:
    launcher: Sequence[str]
    devices: int

    @property
    def ranks(self) -> int:
        return max(2, self.devices)


class Agent:
    """A launcher, and the lines of JSON of its workers."""

    def __init__(
        self,
        machine: Machine,
        folder: Path,
        *words: str,
        node: str = "0",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        environ = {
            **os.environ,
            **(variables or {}),
            "GPU_CHECK_DIR": str(folder),
            "GPU_CHECK_NODE": node,
            "PET_RESTART_BACKOFF": "0",
            "NCCL_SOCKET_IFNAME": "lo",
        }
        self.process = subprocess.Popen(
            [*machine.launcher, *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.found: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._log: list[str] = []
        self._readers = [threading.Thread(target=one) for one in (self._read, self._read_log)]
        for reader in self._readers:
            reader.start()

    def next(self, *keys: str) -> dict[str, Any]:
        """The next result that has one of these keys."""
        while True:
            try:
                line = self._lines.get(timeout=LIMIT_S)
            except queue.Empty:
                line = None
            if line is None:
                raise Failed(f"no result with {' or '.join(keys)}: {self.log[-2000:]}")
            self.found.append(line)
            if "wrong" in line:
                raise Failed(f"wrong sums: {line}")
            if any(key in line for key in keys):
                return line

    def end(self, code: int = 0) -> list[dict[str, Any]]:
        """All results of a job that ends with this code."""
        try:
            found = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the job does not end: {self.log[-2000:]}") from None
        for reader in self._readers:
            reader.join()
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                self.found.append(line)
        if found != code:
            raise Failed(f"exit code {found} instead of {code}: {self.log[-2000:]}")
        return self.found

    @property
    def log(self) -> str:
        return "".join(self._log)

    def kill(self) -> None:
        """The agent and all its processes, as a power failure does."""
        for pid in [self.process.pid, *proc.descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            begin = line.find("{")
            try:
                self._lines.put(json.loads(line[begin:]))
            except ValueError:
                self._log.append(line)
        self._lines.put(None)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self._log.extend(self.process.stderr)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        yield Path(name)


@contextlib.contextmanager
def _running(*agents: Agent) -> Iterator[None]:
    try:
        yield
    finally:
        for agent in agents:
            if agent.process.poll() is None:
                agent.kill()


def _one_node(machine: Machine, what: str, *options: str, folder: Path, ranks: int = 0) -> Agent:
    count = ranks or machine.ranks
    words = ("--standalone", f"--nproc-per-node={count}", *options, str(WORKER), what)
    return Agent(machine, folder, *words)


def _expect(is_right: bool, what: str) -> None:
    if not is_right:
        raise Failed(what)


def all_reduce(machine: Machine) -> str:
    with _folder() as folder:
        agent = _one_node(machine, "all-reduce", folder=folder)
        with _running(agent):
            found = agent.end()
    _expect(len(found) == machine.ranks and all(one["right"] for one in found), f"sums: {found}")
    ms = max(one["ms"] for one in found)
    return f"{machine.ranks} ranks, 64 MiB each: right, {ms:.1f} ms ({found[0]['device']})"


def _restart(machine: Machine, *options: str) -> tuple[float, float, list[dict[str, Any]]]:
    with _folder() as folder:
        agent = _one_node(machine, "restart", "--max-restarts=1", *options, folder=folder)
        with _running(agent):
            found = agent.end()
        killed = float((folder / "killed").read_text())
    _expect(all(one["right"] for one in found), f"sums: {found}")
    new = found[machine.ranks :]
    _expect(len(new) == machine.ranks, f"{len(new)} new workers instead of {machine.ranks}")
    began = max(one["began"] for one in new) - killed
    return began, max(one["at"] for one in new) - killed, found


def restart(machine: Machine) -> str:
    began, reduced, _ = _restart(machine)
    return (
        "a rank is killed while the others are in an all-reduce: all have torch imported again "
        f"after {began:.2f} s, and the sum of the new round after {reduced:.2f} s"
    )


def warm(machine: Machine) -> str:
    began, reduced, found = _restart(machine, "--warm")
    _expect(not any(one["had_cuda"] for one in found), "a worker was forked with CUDA in use")
    return (
        "the same with --warm: torch imported after "
        f"{began:.2f} s, the sum after {reduced:.2f} s; no worker was forked with CUDA in use"
    )


def hang(machine: Machine) -> str:
    ranks = max(3, machine.ranks)  # of two, each may wait for the other
    with _folder() as folder:
        options = ("--hang-timeout=5", "--hang-action=restart", "--max-restarts=1")
        agent = _one_node(machine, "hang", *options, folder=folder, ranks=ranks)
        with _running(agent):
            found = agent.end()
            log = agent.log
    _expect(len(found) == ranks, f"{len(found)} workers ended instead of {ranks}")
    named = [line.strip() for line in log.splitlines() if "suspected" in line]
    _expect(
        any(f"rank {ranks - 1} " in line and "wait_for_nobody" in line for line in named),
        f"the suspect was not named: {log[-2000:]}",
    )
    others = [line.strip() for line in log.splitlines() if "reduced (" in line]
    _expect(bool(others), f"the stacks of the others were not shown: {log[-2000:]}")
    return f"`{named[0]}`; the others, whose kernels wait on the device: `{others[0]}`"


def ras(machine: Machine) -> str:
    """What NCCL's threads reply while a rank does not enter an operation."""
    ranks = max(3, machine.ranks)
    port = free_port()
    address = {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}
    with _folder() as folder:
        words = ("--standalone", f"--nproc-per-node={ranks}", str(WORKER), "hang")
        agent = Agent(machine, folder, *words, variables=address)
        with _running(agent):
            deadline = time.monotonic() + LIMIT_S
            while not (folder / "never").exists():
                _expect(time.monotonic() < deadline, f"no rank waits: {agent.log[-2000:]}")
                time.sleep(0.1)
            replies = []
            for pause in (nccl_ras.PAUSE_S, nccl_ras.PAUSE_S):  # the others launch the operation
                time.sleep(pause)
                try:
                    replies.append(nccl_ras.fetch(("127.0.0.1", port)))
                except nccl_ras.NoReplyError as error:
                    raise Failed(str(error)) from None
            if record := os.environ.get("GPU_CHECK_RECORD"):
                for number, reply in enumerate(replies):
                    Path(record, f"ras-{number}.json").write_bytes(reply)
            (folder / "go").touch()
            agent.end()
    first, second = map(nccl_ras.decode, replies)
    found = nccl_ras.explain(first, second, ranks)
    _expect(found.startswith(f"rank {ranks - 1} launched"), f"{found!r} of {replies[1]!r}")
    return f"NCCL {second.version}: `{found}`"


def numa(machine: Machine) -> str:
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    if not nodes:
        raise Skipped("/sys has no NUMA nodes here")
    with _folder() as folder:
        agent = _one_node(
            machine, "binding", "--numa-binding=node", folder=folder, ranks=machine.devices
        )
        with _running(agent):
            try:
                found = agent.end()
            except Failed as failed:
                if agent.process.returncode == 2:
                    raise Skipped(agent.log.strip().splitlines()[-1]) from None
                raise failed
    cpus = {tuple(one["cpus"]) for one in found}
    allowed = [_cpus((node / "cpulist").read_text()) for node in nodes]
    _expect(
        all(any(set(one) <= node for node in allowed) for one in cpus),
        f"workers on CPUs of several NUMA nodes: {cpus}",
    )
    return f"{len(nodes)} NUMA node(s), {len(found)} workers on {sorted(map(len, cpus))} CPUs"


def virtual_local_rank(machine: Machine) -> str:
    with _folder() as folder:
        agent = _one_node(
            machine, "binding", "--virtual-local-rank", folder=folder, ranks=machine.devices
        )
        with _running(agent):
            found = agent.end()
    _expect(len(found) == machine.devices, f"workers: {found}")
    _expect(
        all(one["local_rank"] == 0 and one["count"] == 1 and one["right"] for one in found),
        f"a worker sees more than one device: {found}",
    )
    _expect(
        len({one["device"] for one in found}) == machine.devices, f"a device is shared: {found}"
    )
    return f"{machine.devices} worker(s), each sees one device of its own as device 0"


IN_PLACE = ("--on-membership-change=inplace", "--warm", "--max-restarts=0")


def _nodes_in_place(
    stack: contextlib.ExitStack, folder: Path, launcher: Sequence[str], *more: str
) -> Callable[[int], Agent]:
    """Starts one of three agents with one worker each that trains in place."""
    endpoint = f"127.0.0.1:{free_port()}"

    def start(number: int) -> Agent:
        # The first agent runs the coordinator, which no check loses.
        conf = f"last_call_timeout=1,is_host={str(number == 0).lower()}"
        words = (
            "--nnodes=1:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=gpu",
            f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={conf}", *IN_PLACE, *more, str(WORKER),
            "train",
        )  # fmt: skip
        agent = Agent(Machine(launcher, 0), folder, *words, node=str(number))
        stack.enter_context(_running(agent))
        return agent

    return start


def _continued(agents: Sequence[Agent], pids: Sequence[int], since: float) -> tuple[float, str]:
    """The survivors' time to a step without the other node, and its phases."""
    after = [_stepped(agent, len(agents)) for agent in agents]
    _expect(
        [one["pid"] for one in after] == pids[: len(agents)], "a survivor was restarted, not kept"
    )
    return max(one["at"] for one in after) - since, _phases(agents[0])


def in_place(machine: Machine) -> str:
    """One of three nodes is killed, another one joins."""
    count = 3
    with _folder() as folder, contextlib.ExitStack() as stack:
        start = _nodes_in_place(stack, folder, machine.launcher)
        agents = [start(number) for number in range(count)]
        pids = [_stepped(agent, count)["pid"] for agent in agents]
        lost = agents.pop()
        killed = time.monotonic()
        lost.kill()
        seconds, phases = _continued(agents, pids, killed)
        agents.append(start(count))
        grown = [_stepped(agent, count) for agent in agents]
        _expect([one["pid"] for one in grown[:2]] == pids[:2], "a survivor was restarted")
        _end_alike(agents, folder)
    return (
        f"one of {count} nodes is killed: the same processes complete a step of DDP after "
        f"{seconds:.2f} s ({phases}); a new node joins and has the same parameters"
    )


def leave(machine: Machine) -> str:
    """One of three nodes leaves as planned: between two steps."""
    count = 3
    with _folder() as folder, contextlib.ExitStack() as stack:
        start = _nodes_in_place(stack, folder, machine.launcher, "--drain=60")
        agents = [start(number) for number in range(count)]
        pids = [_stepped(agent, count)["pid"] for agent in agents]
        leaving = agents.pop()
        told = time.monotonic()
        leaving.process.send_signal(signal.SIGTERM)
        leaving.end()
        seconds, phases = _continued(agents, pids, told)
        _end_alike(agents, folder)
    return (
        f"one of {count} nodes gets SIGTERM and ends with 0: the same processes complete a step of "
        f"DDP without it {seconds:.2f} s after the signal ({phases})"
    )


def _end_alike(agents: Sequence[Agent], folder: Path) -> None:
    """All ranks end at the same step, with the same parameters."""
    (folder / "done").touch()
    ends = [agent.next("end") for agent in agents]
    for agent in agents:
        agent.end()
    _expect(len({(one["end"], one["sum"]) for one in ends}) == 1, f"ranks differ: {ends}")


def _stepped(agent: Agent, world: int) -> dict[str, Any]:
    while (found := agent.next("stepped"))["world"] != world:
        pass
    return found


def _phases(agent: Agent) -> str:
    last = [one for one in agent.found if "formed" in one][-1]
    names = ("out", "waited", "group", "state")
    return ", ".join(f"{name} {last[name]:.3f} s" for name in names)


def _cpus(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


CHECKS: dict[str, tuple[str, Callable[[Machine], str]]] = {
    "all-reduce": ("NCCL all-reduce", all_reduce),
    "restart": ("a restart", restart),
    "warm": ("warm workers", warm),
    "hang": ("a hang, with the others in a kernel", hang),
    "ras": ("NCCL's own count of operations", ras),
    "in-place": ("members change in place", in_place),
    "leave": ("a node leaves as planned", leave),
    "numa": ("`--numa-binding=node`", numa),
    "virtual-local-rank": ("`--virtual-local-rank`", virtual_local_rank),
}
