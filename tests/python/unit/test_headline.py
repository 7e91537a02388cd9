"""The picture of the README, which tools/gen_evidence.py draws from stored results."""

from __future__ import annotations

import re
import runpy
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.faults import headline
from bench.faults.reduce import HANG, NO_REACTION, OK, WRONG, Measures
from bench.faults.report import other_source, result
from bench.faults.scenes import BY_NAME
from support.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"
VERSIONS = {"torchrun": "2.13", "ft_launcher": "not run: not installed", "elastic-launch": "1.0"}


def run(scene: str, launcher: str, seconds: float | None, outcome: str = OK, why: str = "") -> Any:
    found = Measures(outcome=outcome, why=why, first_step=seconds)
    return result(scene, launcher, 1, found)


def texts(drawn: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_every_scene_of_the_picture_expects_that_training_goes_on() -> None:
    for name in headline.SCENES:
        assert not {"end"} & set(BY_NAME[name].expected), name


def test_each_run_is_a_point_on_a_linear_axis_beside_their_median() -> None:
    results = [run("worker-killed", "torchrun", at) for at in (2.0, 4.0, 10.0)]
    results += [run("worker-killed", "elastic-launch", 0.1)]
    drawn = headline.svg(results, VERSIONS, "a <fast> machine", {"elastic-launch": "--warm -x"})
    root = ElementTree.fromstring(drawn)
    points = [one.attrib for one in root.iter(f"{SVG}circle") if one.attrib["cy"] == "70.0"]
    assert len(points) == 3
    first, second, third = (float(one["cx"]) for one in points)
    assert third - second == pytest.approx(3 * (second - first), abs=0.2)
    assert {"torchrun 2.13", "elastic-launch --warm 1.0", "a process is killed"} <= set(
        texts(drawn)
    )
    assert "median 4.0 s, 2.0 to 10 s" in texts(drawn)
    assert "prefers-color-scheme:dark" in drawn


def test_what_did_not_recover_and_what_was_wrong_are_words() -> None:
    results = [
        run("host-lost", "torchrun", 3.0, HANG, NO_REACTION),  # new workers, but not enough
        run("host-lost", "elastic-launch", 2.0),
        run("host-lost", "elastic-launch", None, WRONG, "the job ended with 1, 1"),
        run("node-killed", "torchrun", 4.0, WRONG, "2 processes were left behind"),
    ]
    shown = texts(headline.svg(results, VERSIONS, ""))
    assert {"did not recover", "median 2.0 s, 2.0 to 2.0 s; 1 of 2 never"} <= set(shown)
    assert "median 4.0 s, 4.0 to 4.0 s; 1 wrong *" in shown
    assert any(text.startswith("* training went on, but") for text in shown)


def test_what_was_not_run_is_named() -> None:
    drawn = headline.svg(
        [
            run("worker-killed", "torchrun", 1.0),
            run("worker-killed", "elastic-launch", 0.1),
            run("node-killed", "elastic-launch", 0.1),
        ],
        VERSIONS,
        "",
    )
    text = " ".join(texts(drawn))
    assert "Not run: ft_launcher; " in text
    assert "a whole node is killed (by torchrun)" in text
    assert re.search(r"a host loses its network, .* \(by torchrun, elastic-launch\)", text)


def test_one_command_makes_the_page_and_its_pictures() -> None:
    generate = runpy.run_path(str(ROOT / "tools/gen_evidence.py"))["generate"]
    machine = dict.fromkeys(
        ("date", "cpu", "cores", "kernel", "libc", "python", "torch", "load average"), "1"
    )
    launchers = {"elastic-launch": {"version": "1.0", "settings": "--some"}}
    facts = {"commit": "abc", "machine": machine, "launchers": launchers}
    campaign = {"facts": facts, "results": [run("node-joins", "elastic-launch", 0.1)]}
    made = {path.name: text for path, text in generate(campaign, None).items()}
    assert sorted(made) == ["continues.svg", "evidence.md", "evidence.svg", "faults.csv"]
    assert "commit abc, 1, 1 cores, load 1, PyTorch 1" in made["continues.svg"]
    assert [path.name for path in generate(None, None)] == ["evidence.md"]
    alone = {"facts": facts, "results": [run("node-joins", "elastic-launch", 0.2) | {"busy": 0.03}]}
    made = {path.name: text for path, text in generate(campaign, None, alone).items()}
    assert "elastic-launch,1,ok,,,,,,0.2,0,,,0.03" in made["headline.csv"]
    assert "1 cores, alone, PyTorch 1; python -m bench.faults --headline" in made["continues.svg"]
    assert "at most 0.1 processors had been busy for 2 s (at most 0.03 were)" in made["evidence.md"]
    made = {path.name: text for path, text in generate(campaign, None, alone, None, alone).items()}
    assert "elastic-launch,1,ok,,,,,,0.2,0,,,0.03" in made["busy.csv"]
    assert "## An early, a second fault, a busy host" in made["evidence.md"]


def test_pages_call_a_launcher_as_the_picture_does() -> None:
    table = runpy.run_path(str(ROOT / "tools/gen_evidence.py"))["_titles"]
    plain, warm = {"settings": "--some"}, {"settings": "--warm --some"}
    found = table({"elastic-launch-plain": plain, "elastic-launch": warm, "torchrun": plain})
    assert list(found.values()) == ["elastic-launch", "elastic-launch --warm", "torchrun"]


def test_the_box_of_the_readme_has_the_kill_and_the_end_of_the_demo() -> None:
    generator = runpy.run_path(str(ROOT / "tools/gen_evidence.py"))
    demo = (
        "$ elastic-launch\nepoch 2\nelastic-launch: round 1\nepoch 3\n--- killed rank 1 ---\n"
        "elastic-launch: rank 1 killed\nother\nelastic-launch: restarting\nelastic-launch: rank 0\n"
        "continuing with epoch 4\nepoch 4\nkilled:\nafter\ntorchrun took\n"
    )
    text = "a\n```text\nb\n```\n--kill-a-worker\n```text\nold\n```\nend\n"
    assert generator["readme"](text, demo) == (
        "a\n```text\nb\n```\n--kill-a-worker\n```text\nepoch 3\n--- killed rank 1 ---\n"
        "elastic-launch: rank 1 killed\nelastic-launch: restarting\ncontinuing with epoch 4\n"
        "killed:\nafter\ntorchrun took\n```\nend\n"
    )


@pytest.mark.parametrize(("rows", "text"), [
    ([("proportional memory of the template", "elastic --warm", [99.0])], "has 99.0 MiB a node"),
    ([("another case", "elastic --warm", [99.0])], "had 181 MiB a node"),
])  # fmt: skip
def test_the_memory_of_the_template_is_that_of_the_stored_run(rows: Any, text: str) -> None:
    template = runpy.run_path(str(ROOT / "tools/gen_evidence.py"))["_template"]
    found = [{"case": case, "subject": name, "samples": some} for case, name, some in rows]
    assert text in template({"scenes": {"warm": {"rows": found}}})


def test_slow_restarts_are_counted_on_the_page() -> None:
    slow = runpy.run_path(str(ROOT / "tools/gen_evidence.py"))["_outliers"]
    seconds = (1.0, 1.0, 1.0, 3.1)
    results = [run("node-joins", "elastic-launch", at) for at in seconds]
    assert slow({"results": results}) == (1, 4)
    assert slow({"results": [run("node-joins", "torchrun", at) for at in seconds]}) == (0, 0)
    assert slow(None) == (0, 0)


@pytest.mark.parametrize(("change", "why"), [
    ({}, ""),
    ({"commit": "def"}, "has runs of commit abc, this is def"),
    ({"machine": {"kernel": "7"}}, "has runs of a machine with kernel 6, this one has 7"),
])  # fmt: skip
def test_runs_of_another_source_do_not_continue_a_file(change: Any, why: str) -> None:
    machine = {"cpu": "x", "cores": "2", "kernel": "6", "python": "3", "torch": "2"}
    stored = {"commit": "abc", "machine": machine}
    now = stored | change | {"machine": machine | change.get("machine", {})}
    assert other_source(stored, now) == why
    assert other_source({}, now) == ""
