"""The time from a set to the return of another client's blocked wait."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack

from harness.figures import Findings, Missing, quantile
from harness.processes import answer_of, ask, read_line, running, tell
from scenes import Plan
from scenes.servers import Server, cores_awake, servers

Client = subprocess.Popen[str]
Pairs = dict[tuple[str, str], tuple[Client, Client]]


def store_wake(plan: Plan) -> Findings:
    findings = Findings()
    with ExitStack() as stack:
        stack.enter_context(cores_awake(plan))
        subjects = stack.enter_context(servers(plan, ("elastic", "torch", "echo"), findings))
        for _ in range(plan.times(40)):
            for subject in subjects:
                _raw(plan, subject, findings)
        stores = [subject for subject in subjects if subject.name != "echo"]
        pairs = _pairs(plan, stores, findings, stack)
        for repeat in range(plan.times(20)):
            for (library, owner), (waiter, setter) in pairs.items():
                took = _python(plan, waiter, setter, f"{library}/{repeat}")
                for what, sample in took.items():
                    for name, rank in (("p50", 0.5), ("p99", 0.99)):
                        case = f"{what}, Python, {owner}'s server, {name}"
                        value = quantile(sample, rank) / 1e3
                        findings.add(case, f"{library}'s client", "us", value)
    _compare(findings, "raw", "raw, p50", "elastic", floor="echo")
    _compare(findings, "Python", "Python, elastic's server, p50", "elastic's client")
    return findings


def _compare(findings: Findings, what: str, case: str, subject: str, floor: str = "") -> None:
    """Compares a wake with a bare round trip: of the echo server, or of the same client."""
    floor = floor or subject
    wake, trip = f"wake, {case}", f"round trip, {case}"
    if findings.has(wake, subject) and findings.has(trip, floor):
        longer = findings.median(wake, subject) - findings.median(trip, floor)
        findings.at_most(f"{what}: wake by {subject} - round trip by {floor}, p50, us", longer, 15)


def _raw(plan: Plan, subject: Server, findings: Findings) -> None:
    command = [plan.programs.built("store_wake"), "--port", str(subject.port)]
    command += ["--count", str(plan.amount(1000, 100))]
    answer = answer_of([*command, "--echo", "1"] if subject.protocol == "echo" else command)
    for case in ("wake", "round_trip"):
        for rank in ("p50", "p99"):
            if f"{case}_{rank}_us" in answer:
                name = f"{case.replace('_', ' ')}, raw, {rank}"
                findings.add(name, subject.name, "us", answer[f"{case}_{rank}_us"])


def _pairs(plan: Plan, stores: list[Server], findings: Findings, stack: ExitStack) -> Pairs:
    """A waiting and a setting process of each client library at each server."""
    pairs = {}
    for library in ("elastic", "torch"):
        try:
            plan.programs.require_module(library)
        except Missing as missing:
            findings.skip(f"{library}'s client", missing)
            continue
        for store in stores:
            command = [*plan.programs.client("store_client.py"), library, str(store.port)]
            waiter, setter = (stack.enter_context(running(command)) for _ in range(2))
            pairs[library, store.name] = waiter, setter
    return pairs


def _python(plan: Plan, waiter: Client, setter: Client, name: str) -> dict[str, list[int]]:
    """Nanoseconds from just before a set() to the return of the other process's wait(), and of
    bare round trips between them."""
    count = plan.amount(100, 20)
    tell(waiter, call="wait", name=name, count=count)
    answer = ask(setter, call="wake", name=name, count=count)
    returned = json.loads(read_line(waiter))
    wakes = [end - begun for begun, end in zip(answer["begun_ns"], returned, strict=True)]
    return {"wake": wakes, "round trip": answer["trips_ns"]}
