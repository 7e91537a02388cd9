"""Trainings that continue from memory after a killed worker or a lost host, beside DCP."""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import ExitStack

from harness.figures import Findings
from harness.jobs import job, last_ns
from harness.processes import launched, stamps
from scenes import Plan
from scenes.warm import restarts

SNAPSHOTS = "snapshots"
DCP = "DCP, async_save to /dev/shm"
NOTHING = "nothing restored"
KILLED = "100 MiB of state, 2 workers, --warm, one killed, to the first step of both"
LOST = "100 MiB of state, a host is lost, a warm spare takes over, to the first step of both"
SETTLE_S = 5.0  # until a step is copied to the other node
SAVE = "a save of {} MiB, the training thread's time"
NAMES = {
    "snapshot": SNAPSHOTS,
    "copy": "a copy to other tensors",
    "torch.save": "torch.save to /dev/shm",
    "DCP": DCP,
}


def snapshots(plan: Plan) -> Findings:
    findings = Findings()
    plan.programs.require_module("torch")
    launcher = plan.programs.launcher("elastic")
    _, client = plan.programs.client("train_saved.py")
    for name in (SNAPSHOTS, DCP, NOTHING):
        with ExitStack() as stack:
            pipe = stack.enter_context(stamps())
            folder = tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm")
            words = {
                SNAPSHOTS: [client],
                DCP: [client, "--dcp", stack.enter_context(folder)],
                NOTHING: [client, "--nothing"],
            }[name]
            options = ["--standalone", "--warm", "--nproc-per-node=2", "--max-restarts=1000"]
            variables = {"BENCH_STAMPS": pipe.path, "PET_RESTART_BACKOFF": "0"}
            stack.enter_context(launched([*launcher, *options, *words], variables))
            restarts(findings, plan.times(7), pipe, name, 2, {"step": KILLED}, pause=SETTLE_S)
    for _ in range(plan.times(5)):
        with job(launcher, client, "2", nproc_per_node="1", warm="", max_restarts="9") as made:
            made.start(options=["--local-addr=127.0.0.1"])
            made.start(options=["--local-addr=127.0.0.2"])
            made.pipe.next("step", 2)
            made.start(options=["--local-addr=127.0.0.3"])
            time.sleep(2 * SETTLE_S)  # the spare's template is ready, too
            begun_ns = made.agents[1].kill_all()
            findings.add(
                LOST, SNAPSHOTS, "ms", (last_ns(made.pipe.next("step", 2)) - begun_ns) / 1e6
            )
    findings.at_most(f"{KILLED}, ms", findings.median(KILLED, SNAPSHOTS), 600)
    findings.at_most(f"{LOST}, ms", findings.median(LOST, SNAPSHOTS), 1500)
    return findings


def snapshot_save(plan: Plan) -> Findings:
    """One rank, one thread, the ways in turn."""
    findings = Findings()
    plan.programs.require_module("torch")
    mib = plan.amount(1024, 64)
    words = ["--standalone", *plan.programs.client("save_state.py")[1:]]
    command = [*plan.programs.launcher("elastic"), *words, str(mib), str(plan.times(7))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    case = SAVE.format(mib)
    for line in done.stdout.splitlines():
        name, _, seconds = line.partition("\t")
        if name in NAMES:
            findings.add(case, NAMES[name], "ms", 1e3 * float(seconds))
    findings.at_most(
        "a snapshot / a copy",
        findings.median(case, SNAPSHOTS) / findings.median(case, NAMES["copy"]),
        1.3,
    )
    return findings
