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


# Of the judge of hangs alone, when all ranks of the larger job wait in collective operations.
WAITS = {
    "one": "a rank has not entered an operation",
    "groups": "the same, in groups of ranks of a node and of the same local rank",
    "scattered": "every rank is at another operation",
    "circle": "each node waits for the next one",
    "mismatch": "sizes of operations that are over",
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
    _judge(plan, findings, large)
    return findings


def _judge(plan: Plan, findings: Findings, count: int) -> None:
    command = [plan.programs.built("hang_judge"), "--nodes", str(count)]
    cases = []
    for _ in range(plan.times(5)):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            timeout=ANSWER_SECONDS, check=True,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            scene, *figures = line.split()
            for what, figure in zip(("message", "verdict"), map(int, figures), strict=True):
                case = f"all ranks wait ({WAITS[scene]}), {count} nodes: longest {what}, CPU time"
                cases.append(case)
                findings.add(case, "elastic", "ms", figure / 1e6)
    for case in dict.fromkeys(cases):
        findings.at_most(f"{case}, ms", findings.median(case, "elastic"), LONGEST_MS)


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
