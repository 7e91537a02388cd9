"""The machine of the figures, and the network in which they are measured."""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import importlib.metadata
import os
import platform
import shutil
import socket
import struct
import subprocess
from pathlib import Path

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def enter_private_network() -> bool:
    """Moves this process into a network namespace with loopback only; False without permission.

    torch queries the DNS for every connection. Without a route to a name server the query fails at
    once, for every subject, so that the delay of a name server is not measured.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
    return True


def facts(build: Path, private_network: bool, torchrun: Path | None) -> dict[str, str]:
    return {
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "elastic": _version("elastic-launch"),
        "torch": _version("torch"),
        "torchrun": _version("torch") if torchrun is None else _version_beside(torchrun),
        "redis": _redis_version(),
        "build": _build_facts(build),
        "network": "private namespace, loopback only" if private_network else "the host's",
        "nice": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "load average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _commit() -> str:
    """Of the sources in which this file is."""
    if shutil.which("git") is None:
        return "unknown"
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def busy_seconds() -> float:
    """What all processors together were busy since the machine was started."""
    user, nice, system, _, _, *others = map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _version_beside(torchrun: Path) -> str:
    """The version of torch in the environment of another torchrun."""
    code = "import importlib.metadata as found; print(found.version('torch'))"
    done = subprocess.run(
        [torchrun.with_name("python"), "-c", code], capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or "not installed"


def _redis_version() -> str:
    path = shutil.which("redis-server")
    if path is None:
        return "not installed"
    output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
    return next((word[2:] for word in output.split() if word.startswith("v=")), "unknown")


def _build_facts(build: Path) -> str:
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        return "not built"
    entries = dict(
        line.split("=", 1) for line in cache.read_text().splitlines() if "=" in line and ":" in line
    )
    compiler = Path(
        entries.get("CMAKE_CXX_COMPILER:STRING")
        or entries.get("CMAKE_CXX_COMPILER:FILEPATH", "c++")
    )
    version = subprocess.run(
        [str(compiler), "-dumpfullversion"], capture_output=True, text=True, timeout=10
    ).stdout.strip()
    return f"{entries.get('CMAKE_BUILD_TYPE:STRING', '?')}, {compiler.name} {version}"
