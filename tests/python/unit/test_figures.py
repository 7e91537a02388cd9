"""Every figure of the README and of docs/evidence.md is that of a stored run."""

from __future__ import annotations

import collections
import json
import re
import runpy
import statistics
import subprocess
from typing import Any

import pytest

from bench.faults.launchers import LAUNCHERS
from bench.faults.scenes import SCENES
from support.paths import ROOT

README = (ROOT / "README.md").read_text()
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
EVIDENCE = (ROOT / "docs/evidence.md").read_text()
HISTORY = (ROOT / "bench/HISTORY.md").read_text()


def stored(name: str = "faults") -> list[dict[str, Any]]:
    return json.loads((ROOT / f"bench/results/{name}.json").read_text())["results"]


def times(scene: str, launcher: str, name: str) -> list[float]:
    return [
        one["first_step"]
        for one in stored(name)
        if (one["scene"], one["launcher"]) == (scene, launcher)
    ]


def medians(scene: str, case: str) -> dict[str, float]:
    rows = json.loads((ROOT / "bench/results/speed.json").read_text())["scenes"][scene]["rows"]
    return {one["subject"]: one["median"] for one in rows if one["case"] == case}


def test_the_figure_of_the_template_is_in_the_history_if_no_stored_run_has_it() -> None:
    """The rest of the page is generated from stored runs, which another test checks."""
    if "warm" in json.loads((ROOT / "bench/results/speed.json").read_text())["scenes"]:
        assert "181 MiB" not in EVIDENCE
        return
    assert "had 181 MiB a node" in EVIDENCE and "on 2026-11-23" in EVIDENCE
    section = HISTORY.partition("\n## A third machine\n")[2]
    assert "2026-11-23: AMD EPYC" in section and "the template has\n  181 MiB" in section


def test_the_medians_of_the_earlier_campaign_are_those_of_its_commit() -> None:
    shown = ["git", "show", "7ca0a596:bench/results/headline.json"]
    done = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("the clone is shallow, or there is none")
    found = [one for one in json.loads(done.stdout)["results"] if one["scene"] == "worker-killed"]
    medians = {
        name: statistics.median(one["first_step"] for one in found if one["launcher"] == name)
        for name in ("torchrun", "ft_launcher", "elastic-launch-plain", "elastic-launch")
    }
    words = (
        "torchrun {:.1f}, ft_launcher {:.1f}, elastic-launch {:.1f}, elastic-launch --warm {:.2f}"
    )
    assert words.format(*medians.values()) + " s" in EVIDENCE


def test_the_stored_runs_of_faults_and_of_speed_are_of_one_machine() -> None:
    one, other = (
        json.loads((ROOT / f"bench/results/{name}.json").read_text())
        for name in ("headline", "speed")
    )
    names = ("cpu", "cores", "kernel", "python", "torch")
    assert [one["facts"]["machine"][name] for name in names] == [
        other["machine"][name] for name in names
    ]


def test_the_readme_has_no_figure_but_those_that_are_compared_here() -> None:
    """A figure that is added to the README needs a row in this test, and a stored run."""
    start, restart = medians("start", "exec to exit"), medians("restart", "8 workers run")
    hangs = statistics.median(times("worker-hangs", "torchrun", "headline"))
    warm, plain = (
        statistics.median(times("worker-killed", name, "headline"))
        for name in ("elastic-launch", "elastic-launch-plain")
    )
    assert re.findall(r"[\d.]+ (?:to [\d.]+ )?(?:ms|s|MiB|GB|%)\b", PROSE) == [
        f"{hangs:.0f} s",
        "20 s",
        f"{restart['elastic']:.0f} ms",
        f"{warm:.2f} s",
        f"{plain:.1f} s",
        "15 s",
        f"{start['elastic'] / 1000:.2f} s",
        f"{start['torchrun'] / 1000:.1f} s",
    ]
    worker = (ROOT / "bench/faults/worker.py").read_text()
    assert "GROUP_TIMEOUT = timedelta(seconds=20)" in worker
    assert "within 15 s after the last progress" in (ROOT / "docs/hangs.md").read_text()
    settings = LAUNCHERS["elastic-launch"].options
    assert {"--hang-timeout=5", "--hang-action=restart"} <= set(settings)


def test_a_failed_process_is_detected_as_fast_as_the_readme_says() -> None:
    assert "within tens of milliseconds" in " ".join(PROSE.split())
    for name in ("elastic-launch", "elastic-launch-plain"):
        found = [
            one["detected"]
            for one in stored("headline")
            if (one["scene"], one["launcher"]) == ("worker-killed", name)
        ]
        assert max(found) < 0.1


def test_the_box_of_the_demo_is_its_stored_output() -> None:
    """bench/results/demo.txt; python tools/gen_evidence.py copies lines of it."""
    demo = (ROOT / "bench/results/demo.txt").read_text()
    box = README.partition("--kill-a-worker")[2].partition("```text\n")[2].partition("```")[0]
    lines = iter(demo.splitlines())
    assert all(line in lines for line in box.splitlines())  # in this order
    assert box.splitlines()[-3:] == demo.splitlines()[-3:]
    assert [line.split()[0] for line in box.splitlines()[-3:]] == ["killed:", "after", "torchrun"]


def test_the_demo_has_the_stored_time_of_torchrun() -> None:
    median = statistics.median(times("worker-killed", "torchrun", "headline"))
    took = f"torchrun took {median:.1f} s in"
    assert took in (ROOT / "examples/watch_recovery.py").read_text()
    assert took in (ROOT / "bench/results/demo.txt").read_text()


def test_the_readme_says_what_torchrun_prints() -> None:
    lines = (ROOT / "bench/results/torchrun_report.txt").read_text().splitlines()
    assert f"[{len(lines)} lines]" in PROSE
    tracebacks = [at for at, line in enumerate(lines) if line.startswith("Traceback")]
    assert "loss is nan" in lines[tracebacks[0] + 3] and "runpy" in lines[tracebacks[1] + 1]
    failures = lines[lines.index("Failures:") :]
    assert next(one for one in failures if "rank  " in one).endswith("rank: 0)")


def test_the_page_of_the_design_has_the_stored_cost_of_the_guardian() -> None:
    found = medians("restart", "8 workers run")
    more = f"takes {found['elastic'] - found['bare fork+exec']:.1f} ms longer than eight bare"
    assert more in (ROOT / "docs/architecture.md").read_text()


def test_no_restart_of_ours_is_much_slower_than_the_others_of_its_scene() -> None:
    """None of the runs that the picture and the page show, with --warm and without."""
    found = stored("headline")
    for name in ("elastic-launch", "elastic-launch-plain"):
        for scene in {one["scene"] for one in found}:
            seconds = times(scene, name, "headline")
            assert max(seconds) <= 3 * statistics.median(seconds), (scene, name, seconds)


def test_the_readme_counts_scenes_and_runs_as_they_are() -> None:
    ran = {one["scene"] for one in stored()}
    assert f"{len(ran)} of {len(SCENES)} scenes" in PROSE
    if (ROOT / "bench/results/busy.json").exists():
        assert {one["scene"] for one in stored("busy")} == {one.name for one in SCENES} - ran
    counts = collections.Counter((one["scene"], one["launcher"]) for one in stored("headline"))
    assert set(counts.values()) == {7}
    assert "Seven runs of each" in PROSE


def test_the_readme_is_short_and_begins_with_what_a_reader_needs() -> None:
    lines = README.splitlines()
    assert len(lines) <= 115 and len(README.split()) <= 900
    assert any("pip install" in line for line in lines[:25])
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", README)
    assert pictures and all(one.startswith("https://") for one in pictures)  # also on PyPI
    for one in pictures:
        assert (ROOT / one.partition("/main/")[2]).is_file()


def test_on_pypi_the_links_of_the_readme_lead_to_files_of_the_release() -> None:
    text = runpy.run_path(str(ROOT / "tools/pypi_readme.py"))["absolute"](README)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 20 and all(one.startswith("https://") for one in links)
    paths = [one.partition("/blob/")[2].partition("/")[2] for one in links if "/blob/" in one]
    assert len(paths) > 20
    assert [one for one in paths if not (ROOT / one.partition("#")[0]).is_file()] == []
