"""Round trips through the Python clients, one connection, one call after the other."""

from __future__ import annotations

from contextlib import ExitStack

from harness.figures import Findings, Missing
from harness.processes import ask, running
from scenes import Plan
from scenes.servers import cores_awake, servers

# torch's get makes two round trips (WAIT, then GET); its add makes one, so it is the comparison.
CALLS = (("elastic", "get"), ("torch", "add"), ("torch", "get"))


def store_client(plan: Plan) -> Findings:
    findings = Findings()
    calls = plan.amount(2000, 200)
    with ExitStack() as stack:
        stack.enter_context(cores_awake(plan))
        subjects = stack.enter_context(servers(plan, ("elastic", "torch"), findings))
        clients = {}
        for library in ("elastic", "torch"):
            try:
                plan.programs.require_module(library)
            except Missing as missing:
                findings.skip(f"{library}'s client", missing)
                continue
            for subject in subjects:
                command = [*plan.programs.client("store_client.py"), library, str(subject.port)]
                clients[library, subject.name] = stack.enter_context(running(command))
        for _ in range(plan.times(60)):
            for library, call in CALLS:
                for subject in subjects:
                    if (library, subject.name) not in clients:
                        continue
                    answer = ask(clients[library, subject.name], call=call, count=calls)
                    case = f"{call} from {subject.name}'s server"
                    findings.add(f"{case}, p50", f"{library}'s client", "us", answer["p50_us"])
                    findings.add(f"{case}, p99", f"{library}'s client", "us", answer["p99_us"])
    get, add = "get from elastic's server, p50", "add from elastic's server, p50"
    if findings.has(get, "elastic's client") and findings.has(add, "torch's client"):
        ratio = findings.median(get, "elastic's client") / findings.median(add, "torch's client")
        findings.at_most("p50 of elastic's get / torch's one-trip add", ratio, 1.15)
    return findings
