"""The fault campaign: its table of scenes, and what it makes of the stamps of a run."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

from bench.faults import picture, report
from bench.faults.launchers import LAUNCHERS, Place, chosen
from bench.faults.reduce import (
    CONTINUE,
    END,
    HANG,
    OK,
    RECOVER,
    STEPS,
    WRONG,
    Exit,
    Harm,
    Named,
    Observed,
    Stamp,
    is_continued,
    is_recovered,
    measure,
)
from bench.faults.scenes import SCENES
from support.paths import ROOT

FAULT = 100.0


def life(pid: int, rank: int, world: int, start: float, steps: int) -> list[Stamp]:
    """A worker on the node of its rank, with a step each second after the first two."""
    found = [Stamp("start", rank, pid, rank, world, start)]
    return found + [Stamp("step", rank, pid, rank, world, start + 2 + n) for n in range(steps)]


def recovered() -> Observed:
    """Rank 1 of two is killed, both run again in a second round, and end."""
    return Observed(
        harm=Harm(at=FAULT, workers={11}, culprit=11),
        stamps=[
            *life(10, 0, 2, 50, 48),
            *life(11, 1, 2, 50, 48),
            *life(20, 0, 2, 103, STEPS),
            *life(21, 1, 2, 104, STEPS),
        ],
        ended={11: FAULT, 10: FAULT + 2},
        exits={0: Exit(0, 120), 1: Exit(0, 120)},
        nodes={0, 1},
        named=[Named(FAULT + 1, 11), Named(FAULT + 1.5, 10)],
    )


def test_times_count_from_the_fault() -> None:
    found = measure(recovered(), (RECOVER,), RECOVER)
    assert (found.outcome, found.why, found.culprit) == (OK, "", "right")
    times = (found.detected, found.stopped, found.round, found.running, found.first_step)
    assert times == (2, 2, 3, 4, 5)
    assert found.codes == {"0": 0, "1": 0}


def test_training_goes_on_when_every_rank_of_the_world_steps() -> None:
    seen = recovered()
    assert is_recovered(seen, 2) and is_recovered(seen, None)
    assert not is_recovered(seen, 3)
    seen.ended[21] = 118
    assert not is_recovered(seen, 2)


def test_workers_that_nothing_touches_continue() -> None:
    seen = recovered()
    seen.stamps, seen.ended = [*life(10, 0, 2, 90, 20), *life(11, 1, 2, 90, 20)], {}
    assert is_continued(seen)
    seen.harm.until = 109
    assert not is_continued(seen)


@pytest.mark.parametrize(
    ("expected", "reached", "change", "outcome", "why"),
    [
        ((RECOVER,), "", {}, HANG, "no reaction"),
        ((RECOVER,), END, {"exits": {0: Exit(1, 110), 1: Exit(1, 110)}}, WRONG, "ended with 1, 1"),
        ((CONTINUE,), RECOVER, {}, WRONG, "restarted"),
        ((END,), END, {}, WRONG, "success"),
        ((RECOVER,), RECOVER, {"exits": {0: Exit(0, 120), 1: Exit(1, 120)}}, WRONG, "0, 1"),
        ((RECOVER,), RECOVER, {"left": ["pid 7", "pid 8"]}, WRONG, "2 processes"),
        ((RECOVER,), RECOVER, {"named": [Named(FAULT + 1, 10)]}, WRONG, "another process"),
        ((RECOVER,), RECOVER, {"named": []}, OK, ""),
        ((RECOVER, END), END, {"exits": {0: Exit(7, 110), 1: Exit(7, 110)}}, OK, ""),
    ],
)
def test_outcome(
    expected: tuple[str, ...], reached: str, change: dict[str, object], outcome: str, why: str
) -> None:
    seen = recovered()
    for name, value in change.items():
        setattr(seen, name, value)
    found = measure(seen, expected, reached)
    assert (found.outcome, why in found.why) == (outcome, True), found.why


def test_job_that_does_not_end_after_its_recovery_hangs() -> None:
    assert measure(recovered(), (RECOVER,), RECOVER, is_finished=False).outcome == HANG


def test_scenes_are_well_formed() -> None:
    assert len({scene.name for scene in SCENES}) == len(SCENES) >= 30
    for scene in SCENES:
        assert scene.what and len(scene.what) <= 72, scene.name
        assert scene.expected and set(scene.expected) <= {RECOVER, CONTINUE, END}, scene.name
        assert set(scene.settings) <= set(LAUNCHERS), scene.name
        low, _, high = scene.nnodes.partition(":")
        assert int(low) <= scene.nodes <= int(high or low), scene.name
        if scene.world is not None:
            assert int(low) * scene.nproc <= scene.world <= int(high or low) * scene.nproc


@pytest.mark.parametrize("name", LAUNCHERS)
def test_command_line_of_each_launcher(name: str) -> None:
    launcher = chosen(f"{name}=/bin/true")
    place = Place(
        address="10.0.0.2", endpoint="10.0.0.1:29400", nnodes="2:3", nproc=2, is_first=False,
        options=("--of-the-scene",), conf="of=scene",
    )  # fmt: skip
    words = launcher.command(place, "train.py")
    assert words[0] == "/bin/true" and words[-1] == "train.py"
    assert "--nnodes=2:3" in words and "--of-the-scene" in words
    assert any(word.startswith("--rdzv-conf=") and ",of=scene" in word for word in words)


def test_workers_that_a_log_calls_failed() -> None:
    assert (
        chosen("torchrun").named("E1126 failed (exitcode: -9) local_rank: 1 (pid: 27096) of binary")
        == 27096
    )
    line = "elastic-launch: rank 1 (local rank 1, pid 20269) was killed by SIGKILL; restarting"
    assert chosen("elastic-launch").named(line) == 20269
    assert chosen("elastic-launch").named("training at rank 1") is None


def test_table_and_picture_have_every_scene_that_ran() -> None:
    good = measure(recovered(), (RECOVER,), RECOVER)
    bad = measure(recovered(), (RECOVER,), "")
    results = [
        report.result("worker-killed", "torchrun", 1, good),
        report.result("worker-killed", "torchrun", 2, bad),
        report.result("worker-killed", "elastic-launch", 1, good),
    ]
    names = ["torchrun", "elastic-launch"]
    text = report.table(results, names)
    assert "`worker-killed`" in text and "**1 ok, 1 hang**" in text and "| ok | 5.0 |" in text
    assert "| torchrun | 2 | 1 | 0 | 1 |" in report.totals(results, names)
    drawn = picture.svg(results, names, "a machine")
    assert drawn.count(">worker-killed<") == 1 and "1 ok, 1 hang" in drawn


def test_page_of_the_evidence_is_generated() -> None:
    """Otherwise: python tools/gen_evidence.py"""
    done = subprocess.run([sys.executable, str(ROOT / "tools/gen_evidence.py"), "--check"])
    assert done.returncode == 0


def test_page_has_results_when_they_are_stored() -> None:
    generator = runpy.run_path(str(ROOT / "tools/gen_evidence.py"))
    campaign = {
        "facts": {
            "commit": "abc",
            "machine": dict.fromkeys(
                ("date", "cpu", "cores", "kernel", "libc", "python", "torch", "load average"), "1"
            ),
            "launchers": {"torchrun": {"version": "2", "settings": "--some"}},
        },
        "results": [
            report.result("worker-killed", "torchrun", 1, measure(recovered(), (RECOVER,), RECOVER))
        ],
    }
    text = generator["page"](campaign, None)
    assert "| ok | 5.0 |" in text
    runs = report.csv_text(campaign["results"])
    assert "worker-killed,torchrun,1,ok,,2.0,2.0,3.0,4.0,5.0,0,right,0 0" in runs
    assert "evidence.svg" in text and "No results" not in text
