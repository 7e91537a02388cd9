"""One job of one launcher between hosts that are network namespaces, and what happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import namespaces

from bench.faults.launchers import PORT, Launcher, Place
from bench.faults.reduce import Exit, Harm, Named, Observed, Stamp, is_training, parse_stamps

WORKER = Path(__file__).with_name("worker.py")
MARK = "FAULTS_MARK"
POLL_S = 0.01
# A process of an agent that ended: the grace of --shutdown-timeout (5 s), and as much again.
KILL_S = 10.0


class NotApplicable(Exception):
    """The launcher has no such part, or the machine no such possibility."""


class Agent:
    """The launcher on one node, and the lines that it writes."""

    def __init__(self, node: int, argv: list[str], environ: Mapping[str, str], log: Path) -> None:
        self.node = node
        self.exit: Exit | None = None
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environ,
        )
        self.pid = self.process.pid
        self._log = log
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self._log.open("w") as log, contextlib.suppress(ValueError):
            for line in self.process.stdout:
                now = time.monotonic()
                self.lines.append((now, line))
                log.write(f"{now:.3f} {line}")
                log.flush()

    def poll(self) -> None:
        if self.exit is None and (code := self.process.poll()) is not None:
            self.exit = Exit(128 - code if code < 0 else code, time.monotonic())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(KILL_S)  # a process that was left behind may hold the pipe
        if not self._reader.is_alive():
            assert self.process.stdout is not None
            self.process.stdout.close()


class Job:
    """`hosts` are more than agents where a node is to join."""

    def __init__(
        self,
        launcher: Launcher,
        folder: Path,
        hosts: list[namespaces.Host],
        *,
        nnodes: str,
        nproc: int = 1,
        options: tuple[str, ...] = (),
        conf: str = "",
        logs: Path | None = None,
        environ: Callable[[int], Mapping[str, str]] = lambda node: {},
        script: Path = WORKER,
    ) -> None:
        self.launcher = launcher
        self.folder = folder
        self.hosts = hosts
        self.harm = Harm()
        self.agents: dict[int, Agent] = {}
        self.logs = logs
        self.cleanup = contextlib.ExitStack()  # of what an action has started
        self.nproc = nproc
        self._nnodes, self._options, self._conf = nnodes, options, conf
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        self._more = environ
        self._script = script
        self._stamps: list[Stamp] = []
        self._ended: dict[int, float] = {}
        self._read_to = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._observer = threading.Thread(target=self._observe, daemon=True)
        (folder / "stamps").touch()
        self._observer.start()

    # What is done.

    def spawn(self, node: int) -> Agent:
        """Starts the launcher on this host."""
        host = self.hosts[node]
        log_dir = "" if self.logs is None else str(self.logs / f"node{node}")
        place = Place(
            address=host.address,
            endpoint=f"{self.hosts[0].address}:{PORT}",
            nnodes=self._nnodes,
            nproc=self.nproc,
            is_first=node == 0,
            options=self._options,
            conf=self._conf,
            log_dir=log_dir,
        )
        name, value = self._mark.split("=")
        inherited = {
            key: of
            for key, of in os.environ.items()
            if not key.startswith(("PET_", "TORCHELASTIC_", "TORCH_ELASTIC_", "FT_"))
            and key != "PYTHONDONTWRITEBYTECODE"  # each process would compile torch
        }
        environ = {
            **inherited,
            name: value,
            "FAULTS_DIR": str(self.folder),
            "FAULTS_NODE": str(node),
            "FAULTS_LAUNCHER": self.launcher.module,
            "GLOO_SOCKET_IFNAME": namespaces.INTERFACE,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **self.launcher.environ,
            **self._more(node),
        }
        count = sum(path.name.startswith(f"node{node}.") for path in self.folder.iterdir())
        log = self.folder / f"node{node}.{count}.log"
        command = host.command(*self.launcher.command(place, str(self._script)))
        agent = Agent(node, command, environ, log)
        self.agents[node] = agent
        return agent

    def begin(self) -> None:
        """The fault happens now."""
        self.harm.at = time.monotonic()

    def order(self, rank: int, what: str) -> None:
        """Tells a worker what to do at its next step; returns when it has read that."""
        self.harm.workers.add(self.worker(rank))
        path = self.folder / f"order{rank}"
        (self.folder / "order").write_text(what)
        os.replace(self.folder / "order", path)
        if not self.wait(lambda: any(s.kind == "fault" for s in self.stamps()), 30.0):
            raise RuntimeError("the worker did not read its order")
        self.harm.at = next(s.at for s in self.stamps() if s.kind == "fault") - 1e-6

    def power_off(self, node: int) -> None:
        """All processes of the host end at once; an unplugged host notifies nobody."""
        self.give_up(node)
        self.kill_marked(lambda of: of == node)

    def give_up(self, *nodes: int) -> None:
        """These nodes are off, and not expected to go on."""
        self.harm.nodes.update(nodes)
        self.harm.off.update(nodes)

    # What is seen.

    def stamps(self) -> list[Stamp]:
        with self._lock:
            return list(self._stamps)

    def worker(self, rank: int) -> int:
        """The pid of the running worker of this rank."""
        pids = [s.pid for s in self.stamps() if s.kind == "start" and s.rank == rank]
        running = [pid for pid in pids if pid not in self._ended]
        if not running:
            raise RuntimeError(f"no worker of rank {rank} runs")
        return running[-1]

    def workers_of(self, node: int) -> set[int]:
        found = {s.pid for s in self.stamps() if s.kind == "start" and s.node == node}
        return found - set(self._ended)

    def rank_of(self, node: int) -> int:
        return next(s.rank for s in reversed(self.stamps()) if s.node == node)

    def guardian(self, node: int) -> int:
        pid = self.launcher.guardian(self.agents[node].pid)
        if pid is None:
            raise NotApplicable("it has no process between the agent and the workers")
        return pid

    def observed(self) -> Observed:
        with self._lock:
            named = [
                Named(at, pid)
                for agent in self.agents.values()
                for at, line in list(agent.lines)
                if (pid := self.launcher.named(line)) is not None
            ]
            exits = {a.node: a.exit for a in self.agents.values() if a.exit is not None}
            return Observed(
                harm=self.harm,
                stamps=list(self._stamps),
                ended=dict(self._ended),
                exits=exits,
                nodes=set(self.agents),
                named=named,
            )

    def is_training(self, world: int) -> bool:
        return is_training(self.observed(), world)

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(2 * POLL_S)
        return True

    def marked(self) -> dict[int, int]:
        """The processes of the job, each with its node, also those that left their parents."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path("/proc", entry, "environ").read_bytes().decode(errors="replace")
                variables = words.split("\0")
                if self._mark in variables and _is_alive(int(entry)):
                    node = next((v for v in variables if v.startswith("FAULTS_NODE=")), "=-1")
                    found[int(entry)] = int(node.partition("=")[2])
        return found

    def kill_marked(self, which: Callable[[int], bool] = lambda node: True) -> None:
        for _ in range(3):  # a process may fork meanwhile
            for pid, node in self.marked().items():
                if which(node):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.cleanup.close()
        self._is_over.set()
        self._observer.join()
        self.kill_marked()
        for agent in self.agents.values():
            agent.close()

    def _observe(self) -> None:
        with (self.folder / "stamps").open() as file:
            rest = ""
            while not self._is_over.wait(POLL_S):
                rest += file.read()
                lines, newline, rest = rest.rpartition("\n")
                found = parse_stamps(lines + newline)
                with self._lock:
                    self._stamps += found
                    for stamp in found:
                        if stamp.kind == "start":  # the kernel may use the pid of another again
                            self._ended.pop(stamp.pid, None)
                    for pid in {s.pid for s in self._stamps if s.kind == "start"}:
                        if pid not in self._ended and not _is_alive(pid):
                            self._ended[pid] = time.monotonic()
                for agent in list(self.agents.values()):
                    agent.poll()


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@contextlib.contextmanager
def small_disk(path: Path, kib: int) -> Iterator[Path]:
    """A file system that is soon full."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(path)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise NotApplicable(f"no tmpfs can be mounted: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
