"""Runs one scene with one launcher, or all of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import namespaces

from bench.faults import ROOT
from bench.faults.job import KILL_S, Job, NotApplicable, small_disk
from bench.faults.launchers import Launcher
from bench.faults.reduce import (
    CONTINUE,
    END,
    NOT_APPLICABLE,
    RECOVER,
    Measures,
    has_ended,
    is_continued,
    is_recovered,
    measure,
    survivors,
)  # fmt: skip
from bench.faults.scenes import Scene, Settings
from harness import proc

START_S = 240.0
FINISH_S = 30.0
LEAVE_S = 8.0
DISK_KIB = 1024


def run(scene: Scene, launcher: Launcher, folder: Path) -> Measures:
    """One run; its logs stay in the folder."""
    if scene.needs and scene.needs not in launcher.supports:
        return Measures(outcome=NOT_APPLICABLE, why=f"it has no {scene.needs}")
    shutil.rmtree(folder, ignore_errors=True)  # of a run that said nothing
    folder.mkdir(parents=True)
    settings = scene.settings.get(launcher.module, Settings())
    try:
        with contextlib.ExitStack() as stack:
            environ = _environ(scene, folder)
            disk = None
            if scene.has_full_disk:
                disk = stack.enter_context(small_disk(folder / "disk", DISK_KIB))
            network = stack.enter_context(namespaces.Network())
            hosts = [network.add_host() for _ in range(scene.nodes + scene.more_hosts)]
            job = Job(
                launcher,
                folder,
                hosts,
                nnodes=scene.nnodes,
                nproc=scene.nproc,
                options=settings.options,
                conf=settings.conf,
                logs=disk,
                environ=environ,
            )
            stack.callback(job.close)
            return _watch(scene, job)
    except NotApplicable as why:
        return Measures(outcome=NOT_APPLICABLE, why=str(why))


def _watch(scene: Scene, job: Job) -> Measures:
    for node in range(scene.nodes):
        job.spawn(node)
    world = scene.nodes * scene.nproc
    if not scene.at_start and not job.wait(lambda: job.is_training(world), START_S):
        raise RuntimeError(f"the job has not started within {START_S:g} s: {job.folder}")
    if not scene.at_start:
        time.sleep(scene.settle_s)
    scene.fault(job)
    reached = ""

    def is_decided() -> bool:
        nonlocal reached
        seen = job.observed()
        if CONTINUE in scene.expected and is_continued(seen):
            reached = CONTINUE
        elif is_recovered(seen, scene.world):
            reached = RECOVER
        elif has_ended(seen):
            reached = END
        return bool(reached)

    if not job.wait(is_decided, scene.deadline_s) and is_continued(job.observed()):
        reached = CONTINUE  # not expected: the fault was not noticed
    seen_done = time.monotonic()
    is_finished = _finish(job, reached)
    seen = job.observed()
    seen.done_at = seen_done
    seen.left = _orphans(job)
    return measure(seen, scene.expected, reached, is_finished=is_finished)


def _finish(job: Job, reached: str) -> bool:
    """Ends the job as its user would: training is done, or it is cancelled."""
    harm = job.harm
    if reached:
        (job.folder / "done").touch()
        is_finished = job.wait(lambda: has_ended(job.observed()), FINISH_S)
    if not reached or not is_finished:
        for node in survivors(job.observed()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.agents[node].pid, signal.SIGTERM)
    for node in harm.off:
        job.power_off(node)

    def all_ended() -> bool:
        return job.observed().nodes - harm.off <= set(job.observed().exits)

    job.wait(all_ended, LEAVE_S)
    return not reached or is_finished


def _orphans(job: Job) -> list[str]:
    """Processes that outlive their agent, which ended by itself or by the scene's signal."""
    for agent in job.agents.values():
        if agent.exit is None and agent.node in job.harm.nodes - job.harm.off:
            os.kill(agent.pid, signal.SIGKILL)  # one that is stopped for good
            agent.process.wait(KILL_S)  # while it is there, its processes do not count
    job.wait(lambda: not _left(job), KILL_S)
    return [f"pid {pid}: {proc.described(pid)}" for pid in sorted(_left(job))]


def _left(job: Job) -> set[int]:
    running = {a.node for a in job.agents.values() if a.process.poll() is None}
    return {
        pid
        for pid, node in job.marked().items()
        if node not in running and node not in job.harm.off
    }


def _environ(scene: Scene, folder: Path) -> Callable[[int], Mapping[str, str]]:
    common: dict[str, str] = {}
    if scene.fails is not None:
        common["FAULTS_FAILS"] = str(scene.fails)
    if scene.has_full_disk:
        common["FAULTS_CHATTY"] = "1"
    if not scene.has_clock:
        return lambda node: common
    library = _clock_library(folder)
    clock = {"LD_PRELOAD": str(library), "STUB_WALL_CLOCK_FILE": str(folder / "clock-offset")}
    return lambda node: common | clock if node == 1 else common


def _clock_library(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotApplicable("the clock of one node needs a C compiler")
    source = ROOT / "tests" / "python" / "support" / "stubs" / "stub_wall_clock.c"
    library = folder / "wall_clock.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library
