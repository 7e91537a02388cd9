"""Documents show stories of tests/data/scenarios as the files tell them."""

from __future__ import annotations

import re
import runpy

from support.paths import ROOT

SCENARIOS = ROOT / "tests" / "data" / "scenarios"
FENCE = re.compile(r"(?:<!-- scenario: ([\w/]+) -->\n)?```\w*\n(.*?)```\n", re.DOTALL)


def shown() -> list[tuple[str, str | None, str]]:
    """The page, the file that it names, and the text of each story."""
    return [
        (page.name, name or None, text)
        for page in sorted((ROOT / "docs").glob("*.md"))
        for name, text in FENCE.findall(page.read_text())
        if "\n----\n" in text
    ]


def test_each_story_of_a_document_is_whole_and_that_of_its_file() -> None:
    pages = set()
    for page, name, text in shown():
        assert name is not None, f"{page} shows a story without the name of its file:\n{text}"
        file = (SCENARIOS / f"{name}.txt").read_text()
        # From one heading to the next one, or to the end.
        assert f"\n\n{text}\n# " in file or file.endswith(f"\n\n{text}"), f"{page}: {name}"
        pages.add(page)
    assert {"rendezvous.md", "preemption.md"} <= pages


def test_the_index_has_every_file() -> None:
    """Otherwise: python tools/gen_story_index.py"""
    index = runpy.run_path(str(ROOT / "tools/gen_story_index.py"))
    assert (SCENARIOS / "README.md").read_text() == index["page"]()
    assert {path.name for path in SCENARIOS.iterdir() if path.is_dir()} == set(index["SUBJECTS"])
