"""The memory of a store server per idle connection and per small key."""

from __future__ import annotations

import resource

from harness import proc
from harness.figures import Findings, Missing
from harness.processes import read_line, running
from scenes import Plan
from scenes.servers import Server, server

SERVERS = ("elastic", "torch", "redis")


def store_memory(plan: Plan) -> Findings:
    """A fresh server for each sample: the growth of its anonymous resident memory."""
    findings = Findings()
    connections = plan.amount(10_000, 500)
    keys = plan.amount(100_000, 5_000)
    allow_descriptors(connections + 1000)
    for _ in range(plan.times(5)):
        for name in SERVERS:
            try:
                with server(plan, name) as subject:
                    per = _growth(plan, subject, "connections", connections)
                    findings.add(f"idle connection ({connections})", name, "B", per)
                with server(plan, name) as subject:
                    per = _growth(plan, subject, "keys", keys)
                    findings.add(f"key of 17 with 32 bytes ({keys})", name, "B", per)
            except Missing as missing:
                findings.skip(name, missing)
    if not plan.quick and "elastic" not in findings.skipped:
        case = f"idle connection ({connections})"
        findings.at_most(f"{case}, B", findings.median(case, "elastic"), 1140)
        case = f"key of 17 with 32 bytes ({keys})"
        findings.at_most(f"{case}, B", findings.median(case, "elastic"), 142)
    return findings


def _growth(plan: Plan, subject: Server, what: str, count: int) -> float:
    options = ["--protocol", subject.protocol, "--port", str(subject.port)]
    # One of each first, so that one-time allocations are not counted.
    with running([plan.programs.built("store_fill"), *options, f"--{what}", "1"]) as first:
        read_line(first)
    before = proc.anonymous_bytes(subject.pid)
    with running([plan.programs.built("store_fill"), *options, f"--{what}", str(count)]) as filler:
        read_line(filler)
        return (proc.anonymous_bytes(subject.pid) - before) / count


def allow_descriptors(count: int) -> None:
    """Children inherit the limit; the hard limit is raised, too, if permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
