"""The launchers: their command lines with the best settings known, and what their logs name."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import proc

PORT = 29400
MAX_RESTARTS = 5
NODE_TIMEOUT_S = 3


class Missing(Exception):
    """The launcher is not installed; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node of one job."""

    address: str
    endpoint: str  # address of the first node
    nnodes: str
    nproc: int
    is_first: bool
    options: Sequence[str] = ()  # of the scene, for this launcher
    conf: str = ""  # the same, pairs for --rdzv-conf
    log_dir: str = ""


class Launcher:
    """torchrun, and what the launchers that descend from it have in common."""

    name = "torchrun"
    module = "torch"
    supports: frozenset[str] = frozenset()  # parts that only some launchers have
    conf = (
        "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=2,close_timeout=5,"
        "read_timeout=5"
    )
    options: tuple[str, ...] = ("--monitor-interval=0.1", "--shutdown-timeout=5")
    # Without it workers of a new round find the addresses of the last one's in the shared store.
    environ: Mapping[str, str] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    failed = re.compile(r"failed \(exitcode: .*?pid: (\d+)\)")

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    def program(self) -> list[str]:
        if self._path is not None:
            if not Path(self._path).exists():
                raise Missing(f"{self._path} does not exist")
            return [self._path]
        beside = Path(sys.executable).with_name(self.name)
        if beside.exists():
            return [str(beside)]
        found = shutil.which(self.name)
        if found is None:
            raise Missing(f"{self.name} is not installed: give --launcher {self.name}=PATH")
        return [found]

    def python(self) -> str:
        """The interpreter of its environment, which runs the workers, too."""
        return str(Path(self.program()[0]).with_name("python"))

    def version(self) -> str:
        distribution = {"torch": "torch"}.get(self.module, self.module)
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        done = subprocess.run([self.python(), "-c", code], capture_output=True, text=True)
        return done.stdout.strip() or "unknown"

    def command(self, place: Place, script: str) -> list[str]:
        host = f"is_host={str(place.is_first).lower()}"
        conf = ",".join(filter(None, (self.conf, place.conf, host)))
        logs = [f"--log-dir={place.log_dir}", "--redirects=3"] if place.log_dir else []
        return [
            *self.program(),
            *(f"--nnodes={place.nnodes}", f"--nproc-per-node={place.nproc}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={place.endpoint}", "--rdzv-id=faults"),
            *(f"--max-restarts={MAX_RESTARTS}", f"--local-addr={place.address}"),
            *(f"--rdzv-conf={conf}", *self.options, *logs, *place.options),
            script,
        ]

    def settings(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environ.items()]
        common = [f"--max-restarts={MAX_RESTARTS}", f"--rdzv-conf={self.conf}"]
        return " ".join((*variables, *self.options, *common))

    def guardian(self, agent: int) -> int | None:
        """The process between the agent and its workers, where the launcher has one."""
        return None

    def named(self, line: str) -> int | None:
        """The pid of a worker that this line of the log calls failed."""
        found = self.failed.search(line)
        return int(found[1]) if found else None


class FtLauncher(Launcher):
    """NVIDIA Resiliency Extension. The script sends it heartbeats."""

    name = "ft_launcher"
    module = "nvidia-resiliency-ext"
    options = (
        "--monitor-interval=0.1",
        "--term-timeout=5",
        "--workers-stop-timeout=5",
        "--ft-initial-rank-heartbeat-timeout=30",
        "--ft-rank-heartbeat-timeout=5",
        "--ft-workload-check-interval=1",
    )


class ElasticLaunch(Launcher):
    """This project's launcher. The script reports its steps."""

    name = "elastic-launch"
    module = "elastic-launch"
    supports = frozenset({"guardian"})
    conf = f"node_timeout={NODE_TIMEOUT_S},store_grace=8"
    environ: Mapping[str, str] = {}
    options = (
        *("--warm", "--shutdown-timeout=5", "--restart-backoff=0"),
        *("--hang-timeout=5", "--hang-action=restart", "--straggler-timeout=5"),
    )
    failed = re.compile(r"rank \d+ \([^)]*?pid (\d+)\)")

    def program(self) -> list[str]:
        if self._path is not None:
            return super().program()
        if importlib.util.find_spec("elastic") is None:
            raise Missing("elastic-launch is not installed: pip install .")
        return [sys.executable, "-m", "elastic"]

    def python(self) -> str:
        return sys.executable if self._path is None else super().python()

    def version(self) -> str:
        done = subprocess.run([*self.program(), "--version"], capture_output=True, text=True)
        return (done.stdout.split() or ["unknown"])[-1]

    def guardian(self, agent: int) -> int | None:
        for pid in proc.descendants(agent):
            if b"elastic-guardian" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None


class PlainElasticLaunch(ElasticLaunch):
    """The same without warm workers."""

    name = "elastic-launch-plain"
    options = tuple(option for option in ElasticLaunch.options if option != "--warm")


LAUNCHERS: dict[str, type[Launcher]] = {
    kind.name: kind for kind in (Launcher, FtLauncher, PlainElasticLaunch, ElasticLaunch)
}


def chosen(text: str) -> Launcher:
    """A launcher by `NAME` or `NAME=PATH`."""
    name, _, path = text.partition("=")
    if name not in LAUNCHERS:
        raise ValueError(f"unknown launcher {name!r}: choose from {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name](path or None)
