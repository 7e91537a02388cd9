"""Jobs of several agents on this machine, whose stub workers report when they start and end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import proc
from harness.processes import ANSWER_SECONDS, STOP_SECONDS, Stamps, stamps

LOOPBACK = "127.0.0.1"


class Agent:
    """One agent and its processes."""

    def __init__(self, argv: Sequence[str], pipe: Stamps) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Restarts are measured, which the restart back-off would delay.
            env={**os.environ, "BENCH_STAMPS": pipe.path, "PET_RESTART_BACKOFF": "0"},
        )

    def workers(self, started: Sequence[tuple[int, int]]) -> list[int]:
        """The processes of these stamps that belong to this agent."""
        own = set(proc.descendants(self.process.pid))
        return [pid for pid, _ in started if pid in own]

    def kill_all(self) -> int:
        """Kills the agent and all its processes at once, like a power failure; the time in ns."""
        pids = [self.process.pid, *proc.descendants(self.process.pid)]
        at_ns = time.monotonic_ns()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return at_ns

    def wait(self, seconds: float = ANSWER_SECONDS) -> tuple[int, int]:
        """Its exit code, and the time of its exit in ns."""
        code = self.process.wait(seconds)
        return code, time.monotonic_ns()


class Job:
    """Agents with one endpoint. The first one runs the coordinator, or torch's store."""

    def __init__(
        self, launcher: Sequence[str], worker: str, nnodes: str, pipe: Stamps, **settings: str
    ) -> None:
        """`worker` is a program, or a Python script if its name ends with .py.

        `settings` become options, with "" without a value, apart from `conf`: pairs for
        --rdzv-conf.
        """
        self.pipe = pipe
        self.agents: list[Agent] = []
        self._launcher = launcher
        self._conf = settings.pop("conf", "")
        self._command = [worker] if worker.endswith(".py") else ["--no-python", worker]
        self._options = [
            *("--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-id", "bench"),
            *(word for name, value in settings.items() for word in (_flag(name), value) if word),
        ]
        self.endpoint = f"{LOOPBACK}:{free_port()}"

    def start(
        self,
        prefix: Sequence[str] = (),
        *,
        is_host: bool | None = None,
        options: Sequence[str] = (),
    ) -> Agent:
        """Starts one more agent; `prefix` precedes its command, `options` are its own."""
        hosts = not self.agents if is_host is None else is_host
        conf = ",".join(filter(None, (self._conf, f"is_host={str(hosts).lower()}")))
        common = [*self._options, "--rdzv-endpoint", self.endpoint, "--rdzv-conf", conf]
        command = [*prefix, *self._launcher, *common, *options, *self._command]
        agent = Agent(command, self.pipe)
        self.agents.append(agent)
        return agent

    def close(self) -> None:
        for agent in self.agents:
            with contextlib.suppress(ProcessLookupError):
                agent.process.send_signal(signal.SIGTERM)
        for agent in self.agents:
            try:
                agent.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                agent.kill_all()


@contextlib.contextmanager
def job(launcher: Sequence[str], worker: str, nnodes: str, **settings: str) -> Iterator[Job]:
    with stamps() as pipe:
        made = Job(launcher, worker, nnodes, pipe, **settings)
        try:
            yield made
        finally:
            made.close()


def last_ns(found: Sequence[tuple[int, int]]) -> int:
    return max(at_ns for _, at_ns in found)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def free_port(host: str = LOOPBACK) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def examples() -> Path:
    """The directory of namespaces.py."""
    return Path(__file__).resolve().parents[2] / "examples"
