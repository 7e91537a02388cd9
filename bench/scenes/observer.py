"""What one observer costs the coordinator of a large job."""

from __future__ import annotations

import time

from harness import proc
from harness.figures import Findings
from harness.processes import read_line, running
from scenes import Plan
from scenes.sessions import coordinator
from scenes.store_memory import allow_descriptors


def observer(plan: Plan) -> Findings:
    """The windows with and without the observer alternate within one job."""
    findings = Findings()
    count = plan.amount(4096, 256)
    window = plan.seconds(5.0, 0.3)
    rounds = plan.times(8)
    allow_descriptors(count + 1000)
    case = f"{count} sessions, a heartbeat per second each: the coordinator"
    with coordinator(plan) as (port, pid):
        # Long enough for all windows; it is ended after them.
        words = ["--port", port, "--nodes", count, "--beat-seconds", 3600, "--server", pid]
        load = [plan.programs.built("session_load"), *map(str, words)]
        with running(load, terminate=True) as nodes:
            read_line(nodes)  # all nodes are in a round
            watcher = [*plan.programs.client("observe.py"), str(port)]
            for _ in range(rounds):
                findings.add(case, "without observer", "% of a core", _used(pid, window))
                with running(watcher) as watching:
                    read_line(watching)
                    findings.add(case, "one observer", "% of a core", _used(pid, window))
    cost = findings.median(case, "one observer") - findings.median(case, "without observer")
    findings.at_most("cost of an observer, % of a core", cost, 1)
    return findings


def _used(pid: int, window: float) -> float:
    before, begun = proc.scheduled([pid]), time.monotonic()
    time.sleep(window)
    spent, taken = proc.scheduled([pid]) - before, time.monotonic() - begun
    return 100 * spent.cpu_ns / (taken * 1e9)
