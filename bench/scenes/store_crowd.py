"""A store with as many clients as the machine allows: they connect and pass one barrier."""

from __future__ import annotations

import contextlib
import resource
import subprocess

from harness import proc
from harness.figures import Findings
from harness.processes import read_line, running
from scenes import Plan
from scenes.store_memory import allow_descriptors

CLIENTS = 100_000
QUICK_CLIENTS = 2_000
# Of the about 28,000 ports of an address: the kernel searches long for the last free ones.
CLIENTS_PER_PROCESS = 5_000
SPARE_DESCRIPTORS = 200
# A quarter of the server's limit may be clients that have not sent VALIDATE yet.
SPARE_CONNECTIONS = 4096
LIMIT_SECONDS = 100.0


def store_crowd(plan: Plan) -> Findings:
    findings = Findings()
    total = QUICK_CLIENTS if plan.quick else _possible(CLIENTS)
    for _ in range(plan.times(3)):
        _one(plan, findings, total)
    case = _case(total, "first connect to the last one past the barrier")
    findings.at_most(f"{case}, s", findings.median(case, "elastic"), LIMIT_SECONDS)
    return findings


def _possible(wanted: int) -> int:
    """Rounded down to thousands, if the limit of descriptors cannot be raised so far."""
    with contextlib.suppress(ValueError, OSError):
        allow_descriptors(wanted + SPARE_DESCRIPTORS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, (hard - SPARE_DESCRIPTORS) // 1000 * 1000)


def _one(plan: Plan, findings: Findings, total: int) -> None:
    allowed = total + SPARE_CONNECTIONS
    daemon = [plan.programs.built("store_daemon"), "--connections-max", str(allowed)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(daemon))
        port = read_line(server).strip()
        before = proc.anonymous_bytes(server.pid)
        groups = [
            stack.enter_context(running(_group(plan, port, index, clients, total)))
            for index, clients in enumerate(_split(total))
        ]
        connected = [_stamps(group) for group in groups]
        idle = proc.anonymous_bytes(server.pid) - before
        for group in groups:
            assert group.stdin is not None
            group.stdin.write("\n")
            group.stdin.flush()
        passed = [_stamps(group) for group in groups]
        peak = proc.peak_resident_bytes(server.pid)
    add = findings.add
    connecting = (max(end for _, end in connected) - min(begun for begun, _ in connected)) / 1e9
    passing = (max(end for _, end in passed) - min(begun for begun, _ in passed)) / 1e9
    add(_case(total, "first connect to the last one's reply"), "elastic", "s", connecting)
    add(_case(total, "one barrier"), "elastic", "s", passing)
    case = _case(total, "first connect to the last one past the barrier")
    add(case, "elastic", "s", connecting + passing)
    add(_case(total, "the server's own memory per client"), "elastic", "B", idle / total)
    add(_case(total, "peak memory of the server"), "elastic", "MiB", peak / 2**20)


def _split(total: int) -> list[int]:
    full, rest = divmod(total, CLIENTS_PER_PROCESS)
    return [CLIENTS_PER_PROCESS] * full + ([rest] if rest else [])


def _group(plan: Plan, port: str, index: int, clients: int, total: int) -> list[str]:
    options = {
        "port": port, "source": f"127.0.0.{index + 2}", "clients": clients, "total": total,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [plan.programs.built("store_crowd"), *words]


def _stamps(group: subprocess.Popen[str]) -> tuple[int, int]:
    _, begun, end = read_line(group).split()
    return int(begun), int(end)


def _case(total: int, what: str) -> str:
    return f"{total} clients: {what}"
