"""The picture that bench/plot.py draws from the JSON of a run."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from support.paths import ROOT

PLOT = runpy.run_path(str(ROOT / "bench/plot.py"))
SVG = "{http://www.w3.org/2000/svg}"


def row(case: str, subject: str, median: float) -> dict[str, Any]:
    figures = {"min": median / 2, "median": median, "max": median * 2}
    return {"case": case, "subject": subject, "unit": "ms", **figures}


def run_of(**scenes: list[dict[str, Any]]) -> dict[str, Any]:
    machine = {"cpu": "a <fast> one", "cores": "2", "load average": "0.1 0.2 0.3",
               "torch": "2.13.0", "date": "2026-01-01 00:00 UTC"}  # fmt: skip
    return {"machine": machine, "scenes": {name: {"rows": rows} for name, rows in scenes.items()}}


def test_bars_are_on_a_logarithmic_scale(tmp_path: Path) -> None:
    case = "2 agents with 2 workers each, one killed, to 4 new running"
    result, picture = tmp_path / "result.json", tmp_path / "recovery.svg"
    rows = [row(case, "elastic", 10), row(case, "other", 100), row(case, "torchrun", 1000)]
    result.write_text(json.dumps(run_of(nodes=[*rows, row("another case", "elastic", 5)])))
    assert PLOT["main"]([str(result), str(picture)]) == 0
    root = ElementTree.fromstring(picture.read_text())
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect")]
    assert len(widths) == 3
    assert widths[2] - widths[1] == pytest.approx(widths[1] - widths[0], abs=0.2)
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert {"elastic", "other", "torchrun", "10 ms", "1 s"} <= set(texts)
    assert any("a <fast> one, 2 cores" in text for text in texts)


def test_a_run_without_the_cases_has_no_picture() -> None:
    with pytest.raises(SystemExit, match="none of the cases"):
        PLOT["svg"](run_of(start=[]))


def test_every_case_of_the_picture_is_one_of_the_scenes() -> None:
    for scene, case, _ in PLOT["CASES"]:
        source = (ROOT / f"bench/scenes/{scene}.py").read_text()
        assert re.search(rf'"{re.escape(case)}', source), case
