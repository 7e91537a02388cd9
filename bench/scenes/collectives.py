"""What it costs to watch the collective operations of 8 ranks: of the agent and the guardian, and
of the thread in each worker that reads torch's flight recorder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from harness import proc
from harness.figures import Findings
from harness.processes import launched, stamps
from scenes import Plan

WORKERS = 8
PAUSE_S = 0.02  # between two all-reduces: the recorder is full after 40 s
LIMIT = 0.1  # % of a core, of agent and guardian
SETTLE_S = 2.0
CASES = {
    "reduces": "8 ranks all-reduce 50 times a second",
    "waits": "7 ranks wait for one that sleeps, and are looked at",
}


def collectives(plan: Plan) -> Findings:
    findings = Findings()
    plan.programs.require_module("torch")
    worker = plan.programs.client("reduce_all.py")[1:]
    launcher = plan.programs.launcher("elastic")
    window = plan.seconds(60.0, 5.0)
    for _ in range(plan.times(3)):
        with stamps() as pipe:
            options = ["--standalone", f"--nproc-per-node={WORKERS}", *worker, str(PAUSE_S)]
            with launched([*launcher, *options], {"BENCH_STAMPS": pipe.path}) as agent:
                watches = pipe.next("watch", WORKERS)
                workers = [pid for pid, _ in watches]
                below = set(proc.descendants(agent.pid))
                own = [agent.pid, *(below - set(workers) - _below(workers))]
                time.sleep(SETTLE_S)
                _window(findings, "reduces", window, own, watches)
                for pid in workers:
                    os.kill(pid, signal.SIGUSR1)
                time.sleep(SETTLE_S)
                _window(findings, "waits", window, own, watches)
    for case in CASES.values():
        used = findings.median(f"{case}: CPU of agent and guardian", "elastic")
        findings.at_most(f"{case}: CPU of agent and guardian, % of a core", used, LIMIT)
    return findings


def _below(pids: Sequence[int]) -> set[int]:
    return {one for pid in pids for one in proc.descendants(pid)}


def _window(
    findings: Findings,
    case: str,
    window: float,
    own: Sequence[int],
    watches: Sequence[tuple[int, int]],
) -> None:
    def spent() -> tuple[int, int]:
        in_threads = sum(_thread_ns(pid, thread) for pid, thread in watches)
        return proc.scheduled(list(own)).cpu_ns, in_threads

    before = spent()
    time.sleep(window)
    agent_ns, threads_ns = (now - then for now, then in zip(spent(), before, strict=True))
    text = CASES[case]
    percent = 100 / (window * 1e9)
    findings.add(f"{text}: CPU of agent and guardian", "elastic", "% of a core", agent_ns * percent)
    findings.add(
        f"{text}: CPU of a worker's thread", "elastic", "% of a core",
        threads_ns * percent / WORKERS,
    )  # fmt: skip


def _thread_ns(pid: int, thread: int) -> int:
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
