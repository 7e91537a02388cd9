"""The picture of the README, which tools/gen_evidence.py draws from stored results."""

from __future__ import annotations

import re
import runpy
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.faults import headline
from bench.faults.reduce import HANG, NO_REACTION, OK, WRONG, Measures
from bench.faults.report import result
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


def test_bars_have_the_median_on_a_logarithmic_scale() -> None:
    results = [run("worker-killed", "torchrun", at) for at in (0.5, 1.0, 30.0)]
    results += [run("worker-killed", "elastic-launch", 0.1)]
    drawn = headline.svg(results, VERSIONS, "a <fast> machine")
    root = ElementTree.fromstring(drawn)
    long, short = (
        float(one.attrib["width"]) for one in root.iter(f"{SVG}rect") if one.attrib["x"] == "215"
    )
    assert long == pytest.approx(2 * short, abs=0.2)
    assert {"torchrun 2.13", "elastic-launch 1.0", "1.0 s", "100 ms", "a process is killed"} <= set(
        texts(drawn)
    )
    assert "prefers-color-scheme:dark" in drawn


def test_what_did_not_recover_is_a_mark_at_the_edge() -> None:
    results = [
        run("host-lost", "torchrun", 3.0, HANG, NO_REACTION),  # new workers, but not enough
        run("host-lost", "elastic-launch", 2.0),
        run("host-lost", "elastic-launch", None, WRONG, "the job ended with 1, 1"),
        run("node-joins", "torchrun", None, WRONG, "training went on as if nothing had happened"),
        run("agent-killed", "torchrun", None),
        run("node-killed", "torchrun", 4.0, WRONG, "2 processes were left behind"),
    ]
    drawn = headline.svg(results, VERSIONS, "")
    shown = texts(drawn)
    assert drawn.count('class="cross"') == 2
    assert {"did not recover", "2.0 s, 1 of 2 never", "did not take the node"} <= set(shown)
    assert {"no interruption", "4.0 s *"} <= set(shown)
    assert any(text.startswith("* something else was wrong") for text in shown)


def test_what_was_not_run_is_named() -> None:
    drawn = headline.svg(
        [
            run("worker-killed", "torchrun", 1.0),
            run("worker-killed", "elastic-launch", 0.1),
            run("node-joins", "elastic-launch", 0.1),
        ],
        VERSIONS,
        "",
    )
    text = " ".join(texts(drawn))
    assert "Not run: ft_launcher; " in text
    assert "a node joins (by torchrun)" in text
    assert re.search(r"a process hangs, .* \(by torchrun, elastic-launch\)", text)


def test_one_command_makes_the_page_and_its_pictures() -> None:
    generate = runpy.run_path(str(ROOT / "tools/gen_evidence.py"))["generate"]
    machine = dict.fromkeys(
        ("date", "cpu", "cores", "kernel", "libc", "python", "torch", "load average"), "1"
    )
    launchers = {"elastic-launch": {"version": "1.0", "settings": "--some"}}
    facts = {"commit": "abc", "machine": machine, "launchers": launchers}
    campaign = {"facts": facts, "results": [run("node-joins", "elastic-launch", 0.1)]}
    made = {path.name: text for path, text in generate(campaign, None).items()}
    assert sorted(made) == ["continues.svg", "evidence.md", "evidence.svg"]
    assert "commit abc, 1, 1 cores, PyTorch 1" in made["continues.svg"]
    assert [path.name for path in generate(None, None)] == ["evidence.md"]
