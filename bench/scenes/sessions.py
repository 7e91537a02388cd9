"""Many nodes at one coordinator: the time until all are in a round, and the running costs."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

from harness.figures import Findings
from harness.jobs import LOOPBACK
from harness.processes import ANSWER_SECONDS
from scenes import Plan
from scenes.store_memory import allow_descriptors

# Number of sessions, and the limit in ms until all of them are in a round.
SIZES = {4096: 1500.0, 10_000: 5000.0}
QUICK_SIZES = {256: 1500.0}
TOKEN = "elastic, token"

LISTENING = re.compile(r"listening on \S+:(\d+)")


def sessions(plan: Plan) -> Findings:
    findings = Findings()
    sizes = QUICK_SIZES if plan.quick else SIZES
    allow_descriptors(max(sizes) + 1000)
    for _ in range(plan.times(5)):
        for count in sizes:
            _one(plan, findings, count)
            _one(plan, findings, count, secrets.token_hex(32))
    for count, limit in sizes.items():
        findings.at_most(
            f"{count} sessions in a round, ms", _median(findings, "round", count), limit
        )
    first = min(sizes)
    findings.at_most(f"{first} heartbeats/s: % of a core", _median(findings, "cpu", first), 10)
    findings.at_most(f"{first} heartbeats/s: kB/s", _median(findings, "bytes", first), 1000)
    secured = findings.median(_case("round", first), TOKEN)
    findings.at_most(f"{first} sessions with a token in a round, ms", secured, 5000)
    resumed = _median(findings, "resume", first)
    findings.at_most(f"{first} sessions resumed at a new coordinator, ms", resumed, 2000)
    resumed = findings.median(_case("resume", first), TOKEN)
    findings.at_most(f"{first} sessions with a token resumed, ms", resumed, 5000)
    ratio = findings.median(_case("cpu", first), TOKEN) / _median(findings, "cpu", first)
    findings.at_most(f"{first} heartbeats/s with a token: CPU, multiple of plain", ratio, 2)
    return findings


def _one(plan: Plan, findings: Findings, count: int, token: str = "") -> None:
    seconds = plan.amount(10, 2)
    environ = dict(os.environ) | ({"ELASTIC_TOKEN": token} if token else {})
    who = TOKEN if token else "elastic"
    with coordinator(plan, environ) as (port, pid), coordinator(plan, environ) as (second, _):
        options = {
            "port": port, "nodes": count, "beat-seconds": seconds, "server": pid,
            "resume-port": second,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        load = [plan.programs.built("session_load"), *words]
        done = subprocess.run(
            load, env=environ, stdout=subprocess.PIPE, text=True, timeout=ANSWER_SECONDS
        )
    if done.returncode != 0:
        raise RuntimeError(f"session_load exited with {done.returncode}")
    result = {name: int(value) for name, value in map(str.split, done.stdout.splitlines())}
    findings.add(_case("round", count), who, "ms", result["round"] / 1e6)
    cpu = 100 * result["cpu"] / (seconds * 1e9)
    findings.add(_case("cpu", count), who, "% of a core", cpu)
    findings.add(_case("bytes", count), who, "kB/s", result["bytes"] / seconds / 1e3)
    findings.add(_case("memory", count), who, "B", result["memory"] / count)
    findings.add(_case("resume", count), who, "ms", result["resume"] / 1e6)


@contextlib.contextmanager
def coordinator(
    plan: Plan, environ: dict[str, str] | None = None, options: Sequence[str] = ()
) -> Iterator[tuple[int, int]]:
    """Port and pid of a coordinator whose log goes to a file."""
    with tempfile.TemporaryFile("w+") as log:
        command = [plan.programs.coordinator(), "--bind", f"{LOOPBACK}:0", *options]
        with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stderr=log) as server:
            try:
                yield _port_in(log.fileno(), server), server.pid
            finally:
                server.terminate()


def _port_in(log: int, server: subprocess.Popen[bytes]) -> int:
    while server.poll() is None:
        with open(f"/proc/self/fd/{log}") as log_file:
            if found := LISTENING.search(log_file.read()):
                return int(found[1])
        time.sleep(0.01)
    raise RuntimeError(f"the coordinator exited with {server.returncode}")


def _case(what: str, count: int) -> str:
    return {
        "round": f"{count} sessions join, first connect to the last node's round",
        "cpu": f"{count} sessions, a heartbeat per second each: the coordinator",
        "bytes": f"{count} sessions, a heartbeat per second each: both directions",
        "memory": f"{count} sessions: the coordinator's own memory per session",
        "resume": f"{count} sessions lost at once, to the last one resumed at a new coordinator",
    }[what]


def _median(findings: Findings, what: str, count: int) -> float:
    return findings.median(_case(what, count), "elastic")
