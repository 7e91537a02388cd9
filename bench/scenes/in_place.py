"""Members that change while the others keep their processes, beside restarts of the same job."""

from __future__ import annotations

import time

from harness.figures import Findings
from harness.jobs import Job, job, last_ns
from scenes import Plan

IN_PLACE = "in place"
PREPARED = "in place, --inplace-prepare"
SUBJECTS = {
    IN_PLACE: {"on_membership_change": "inplace"},
    "restart --warm": {"warm": ""},
    "restart": {},
}
REDUCED = "3 agents, one and its worker killed, to the first all-reduce of two"
STEPPED = "the same, to the first step of DDP"
PAUSE = "a third agent joins two, --warm: longest pause between two steps of a survivor"
SETTLE_S = 0.5  # some steps


def in_place(plan: Plan) -> Findings:
    findings = Findings()
    plan.programs.require_module("torch")
    _, worker = plan.programs.client("train_in_place.py")
    launcher = plan.programs.launcher("elastic")
    for _ in range(plan.times(10)):
        for name, options in SUBJECTS.items():
            with job(launcher, worker, "2:3", **options) as made:
                _start(made, 3)
                begun_ns = made.agents[2].kill_all()
                found = made.pipe.collect("step", 2)
                for kind, case in (("reduced", REDUCED), ("step", STEPPED)):
                    stamps = [(pid, at_ns) for what, pid, at_ns in found if what == kind]
                    findings.add(case, name, "ms", (last_ns(stamps[-2:]) - begun_ns) / 1e6)
        options = SUBJECTS[IN_PLACE] | {"warm": "", "conf": "last_call_timeout=0,settle=0"}
        for name, more in ((IN_PLACE, {}), (PREPARED, {"inplace_prepare": "600"})):
            with job(launcher, worker, "1:3", **options, **more) as made:
                _start(made, 2)
                made.start()
                pauses = made.pipe.next("pause", 2)
                findings.add(PAUSE, name, "ms", last_ns(pauses) / 1e6)
    findings.at_most(f"{REDUCED}, ms", findings.median(REDUCED, IN_PLACE), 60)
    findings.at_most(f"{STEPPED}, ms", findings.median(STEPPED, IN_PLACE), 120)
    findings.at_most(f"{PAUSE}, ms", findings.median(PAUSE, PREPARED), 80)
    return findings


def _start(made: Job, agents: int) -> None:
    for _ in range(agents):
        made.start()
    # The world may grow step by step: until all have made a step, and none comes any more.
    seen: set[int] = set()
    while len(seen) < agents:
        seen |= {pid for pid, _ in made.pipe.next("step", 1)}
    time.sleep(SETTLE_S)
    made.pipe.seen("step")
