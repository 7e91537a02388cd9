"""How long one event of a large job blocks the loop of its coordinator."""

from __future__ import annotations

import subprocess

from harness.figures import Findings
from harness.processes import ANSWER_SECONDS
from scenes import Plan
from scenes.store_memory import allow_descriptors

SIZES = (1024, 4096)
QUICK_SIZES = (64, 128)
LONGEST_MS = 20.0
# The cost of each node in the larger job, as a multiple of that in the smaller one.
GROWTH = 1.5

EVENTS = {
    "join": "all nodes join",
    "hang": "all ranks hang, 8 on each node",
    "loss": "one node is lost",
    "leaves": "a quarter of the nodes leave at once",
    "growth": "as many new nodes join",
}


def stalls(plan: Plan) -> Findings:
    findings = Findings()
    sizes = QUICK_SIZES if plan.quick else SIZES
    small, large = sizes
    allow_descriptors(2 * large + 1000)
    for _ in range(plan.times(5)):
        for count in sizes:
            _one(plan, findings, count)
    for event, text in EVENTS.items():
        longest = findings.median(_case(event, large, "longest iteration, CPU time"), "elastic")
        findings.at_most(f"{text}, {large} nodes: longest iteration, ms", longest, LONGEST_MS)
        if event == "growth":  # its cost depends on how long the new nodes take to connect
            continue
        costs = [
            findings.median(_case(event, count, "CPU time per node"), "elastic") for count in sizes
        ]
        findings.at_most(
            f"{text}: CPU time per node, {large} nodes / {small}", costs[1] / costs[0], GROWTH
        )
    return findings


def _one(plan: Plan, findings: Findings, count: int) -> None:
    command = [plan.programs.built("coordinator_stalls"), "--nodes", str(count)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=ANSWER_SECONDS, check=True
    )
    for line in done.stdout.splitlines():
        event, *figures = line.split()
        if event not in EVENTS:
            continue
        longest_cpu, longest, cpu = map(int, figures)
        add = findings.add
        case = _case(event, count, "longest iteration, CPU time")
        add(case, "elastic", "ms", longest_cpu / 1e6)
        add(_case(event, count, "longest iteration"), "elastic", "ms", longest / 1e6)
        add(_case(event, count, "CPU time per node"), "elastic", "µs", cpu / 1e3 / count)


def _case(event: str, count: int, figure: str) -> str:
    return f"{EVENTS[event]}, {count} nodes: {figure}"
