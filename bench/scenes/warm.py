"""Workers with torch, forked from a template (--warm) and executed: how soon they work again."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from harness import proc
from harness.figures import Findings, Missing
from harness.jobs import examples, job
from harness.processes import Stamps, launched, stamps
from scenes import Plan

WARM = "elastic --warm"
SUBJECTS = (WARM, "elastic", "torchrun")
FIRST_STEP = "digits, 2 workers, one killed, to the first step of both"
REDUCED = "2 workers, one killed, to the first all-reduce"
LOADED = "{} workers, one killed, to all scripts with torch imported"
FIRST_START = "first start, 2 agents with 8 workers each, all_reduce.py, exec to exit"
PRIVATE = "private memory of a worker after its first all-reduce"


def warm(plan: Plan) -> Findings:
    findings = Findings()
    commands = _commands(plan, findings)
    for name, command in commands.items():
        plan.programs.require_module("sklearn")
        with _job(command, 2, *plan.programs.client("train_stamped.py"), "digits") as (_, pipe):
            restarts(findings, plan.times(10), pipe, name, 2, {"step": FIRST_STEP})
    for count in (2, 8)[: plan.amount(2, 1)]:
        kinds = {"loaded": LOADED.format(count), "reduced": REDUCED if count == 2 else ""}
        for name, command in commands.items():
            with _job(command, count, *plan.programs.client("train_stamped.py"), "idle") as (
                launcher,
                pipe,
            ):
                pids = restarts(findings, plan.times(10), pipe, name, count, kinds)
                if count == 2:
                    _memory(findings, name, launcher, pids)
    for _ in range(plan.times(3)):
        for name, command in commands.items():
            _first_start(findings, plan, name, command)
    _targets(findings)
    return findings


def _commands(plan: Plan, findings: Findings) -> dict[str, list[str]]:
    commands: dict[str, list[str]] = {}
    for name in SUBJECTS[: plan.amount(len(SUBJECTS), 1)]:
        try:
            plan.programs.require_module("torch")
            commands[name] = plan.programs.launcher(name.split()[0]) + name.split()[1:]
        except Missing as missing:
            findings.skip(name, missing)
    return commands


@contextlib.contextmanager
def _job(command: list[str], count: int, *worker: str) -> Iterator[tuple[int, Stamps]]:
    """A job on one node without a limit of restarts: the launcher's pid, and the stamps."""
    _, script, *arguments = worker
    with ExitStack() as stack:
        pipe = stack.enter_context(stamps())
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        options = ["--standalone", f"--nproc-per-node={count}", "--max-restarts=1000"]
        argv = [*command, *options, script, *arguments, f"{directory}/digits.pt"]
        variables = {"BENCH_STAMPS": pipe.path, "PET_RESTART_BACKOFF": "0"}
        yield stack.enter_context(launched(argv, variables)).pid, pipe


def restarts(
    findings: Findings,
    times: int,
    pipe: Stamps,
    name: str,
    count: int,
    kinds: dict[str, str],
    pause: float = 1.0,
) -> list[int]:
    """Kills a worker of a job that is at work, again and again; the pids of the last workers.

    ``pause``: in seconds before the first one. The template looks after itself then.
    """
    last = list(kinds)[-1]
    pids = [pid for pid, _ in pipe.next(last, count)]
    for index in range(times):
        time.sleep(1 if index else pause)
        begun_ns = time.monotonic_ns()
        os.kill(pids[0], signal.SIGKILL)
        try:
            found = pipe.collect(last, count)
        except RuntimeError as error:
            findings.skip(f"{name}: {kinds[last] or kinds['loaded']}", error)
            return []
        for kind, case in kinds.items():
            if case:
                ended_ns = max(at_ns for what, _, at_ns in found if what == kind)
                findings.add(case, name, "ms", (ended_ns - begun_ns) / 1e6)
        pids = [pid for what, pid, _ in found if what == last]
    return pids


def _memory(findings: Findings, name: str, launcher: int, pids: list[int]) -> None:
    for pid in pids:
        findings.add(PRIVATE, name, "MiB", proc.private_bytes(pid) / 2**20)
    for pid in proc.descendants(launcher):
        if "template.py" in Path(f"/proc/{pid}/cmdline").read_text():
            findings.add("proportional memory of the template", name, "MiB",
                         proc.proportional_bytes(pid) / 2**20)  # fmt: skip


def _first_start(findings: Findings, plan: Plan, name: str, command: list[str]) -> None:
    script = str(examples() / "all_reduce.py")
    count = str(plan.amount(8, 1))
    with job(command, script, "2", nproc_per_node=count) as made:
        begun_ns = time.monotonic_ns()
        agents = [made.start(), made.start()]
        ends = [agent.wait(600) for agent in agents]
    if any(code != 0 for code, _ in ends):
        raise RuntimeError(f"{name} exited with {ends}")
    findings.add(FIRST_START, name, "s", (max(at_ns for _, at_ns in ends) - begun_ns) / 1e9)


def _targets(findings: Findings) -> None:
    limits = {FIRST_STEP: 350.0, LOADED.format(2): 80, LOADED.format(8): 250, REDUCED: 90}
    for case, limit in limits.items():
        if findings.has(case, WARM):
            findings.at_most(f"{case}, ms", findings.median(case, WARM), limit)
    if findings.has(FIRST_START, WARM, "torchrun"):
        ratio = findings.median(FIRST_START, WARM) / findings.median(FIRST_START, "torchrun")
        findings.at_most(f"{FIRST_START}, {WARM} / torchrun", ratio, 1 / 3)
    if findings.has(PRIVATE, WARM):
        findings.at_most(f"{PRIVATE}, MiB", findings.median(PRIVATE, WARM), 15)
