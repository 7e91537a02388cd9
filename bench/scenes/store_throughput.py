"""Requests per CPU second of a store server, under one load generator for all servers."""

from __future__ import annotations

from typing import Any

from harness.figures import Findings
from harness.processes import answer_of
from scenes import Plan
from scenes.servers import Server, servers

KINDS = ("get", "add", "check")
PIPELINES = (1, 16)
CONNECTIONS = 64


def store_throughput(plan: Plan) -> Findings:
    findings = Findings()
    with servers(plan, ("torch", "redis", "elastic", "echo"), findings) as subjects:
        for _ in range(plan.times(20)):
            for kind in KINDS:
                for pipeline in PIPELINES:
                    for subject in subjects:
                        answer = _load(plan, subject, kind, pipeline)
                        per_cpu = answer["requests_per_server_cpu_s"] / 1e3
                        case = _case(kind, pipeline)
                        findings.add(case, subject.name, "k/CPU s", per_cpu)
                        rate = answer["requests_per_s"] / 1e3
                        findings.add(f"{case}, rate", subject.name, "k/s", rate)
    for kind in KINDS:
        _compare(findings, _case(kind, 1), "echo", 0.9)
        _compare(findings, _case(kind, 16), "torch", 7)
        _compare(findings, _case(kind, 16), "redis", 1)
    return findings


def _case(kind: str, pipeline: int) -> str:
    return f"{kind}, pipeline {pipeline}"


def _load(plan: Plan, subject: Server, kind: str, pipeline: int) -> Any:
    options = {
        "protocol": subject.protocol,
        "kind": kind,
        "port": subject.port,
        "pid": subject.pid,
        "connections": CONNECTIONS,
        "pipeline": pipeline,
        "seconds": plan.seconds(0.5, 0.1),
    }
    command = [plan.programs.built("store_load")]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return answer_of(command)


def _compare(findings: Findings, case: str, rival: str, limit: float) -> None:
    """Compares samples of one repeat, because a shared machine's speed changes within seconds."""
    if findings.has(case, "elastic", rival):
        ratio = findings.median_ratio(case, "elastic", rival)
        findings.at_least(f"{case}: per CPU second, elastic / {rival}", ratio, limit)
