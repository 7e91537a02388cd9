"""Rendezvous handlers without agents: the time until N forked Python processes are in a round."""

from __future__ import annotations

from contextlib import ExitStack

from harness.figures import Findings, Missing
from harness.processes import ask, read_line, running
from scenes import Plan
from scenes.sessions import coordinator

# Nodes, and whether torch is measured; with the largest number it does not finish within minutes.
SIZES = {2: True, 8: True, 64: True, 256: False}
QUICK_SIZES = {2: True, 8: True}
TORCH_TIMES = 3
LARGEST_MS = 500.0


def handlers(plan: Plan) -> Findings:
    findings = Findings()
    sizes = QUICK_SIZES if plan.quick else SIZES
    with ExitStack() as stack:
        ports = {"coordinator": stack.enter_context(coordinator(plan))[0]}
        kinds = {"coordinator": "elastic"}
        try:
            plan.programs.require_module("torch")
        except Missing as missing:
            findings.skip("torch", missing)
        else:
            server = stack.enter_context(running(plan.programs.client("torch_server.py")))
            ports["shared"] = ports["torch"] = int(read_line(server))
            kinds |= {"shared": "elastic over TCPStore", "torch": "torch"}
        parents = {
            kind: stack.enter_context(running([*plan.programs.client("handlers.py"), kind]))
            for kind in kinds
        }
        for repeat in range(plan.times(20)):
            for nodes, is_torch_asked in sizes.items():
                for kind, subject in kinds.items():
                    is_slow = kind == "torch"
                    if is_slow and (repeat >= TORCH_TIMES or not is_torch_asked):
                        continue
                    if kind == "shared" and not is_torch_asked:
                        continue  # meant for up to 64 nodes
                    name = f"{kind}-{nodes}-{repeat}"
                    took = ask(parents[kind], kind=kind, port=ports[kind], nodes=nodes, name=name)
                    findings.add(_case(nodes), subject, "ms", 1e3 * took)
    _judge(findings, sizes)
    return findings


def _judge(findings: Findings, sizes: dict[int, bool]) -> None:
    largest = _case(max(sizes))
    findings.at_most(f"{largest}, ms", findings.median(largest, "elastic"), LARGEST_MS)
    for nodes in sizes:
        case, shared = _case(nodes), "elastic over TCPStore"
        if findings.has(case, shared, "torch"):
            ratio = findings.median(case, shared) / findings.median(case, "torch")
            findings.at_most(f"{case}: {shared} / torch", ratio, 1)


def _case(nodes: int) -> str:
    return f"{nodes} processes, common start to the last one's round"
