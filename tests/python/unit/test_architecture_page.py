"""docs/architecture.md follows a failure and a start through functions that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLACE = re.compile(r"`((?:csrc|python)/[\w/.]+)`: ((?:`\w+`(?:, )?)+)")


def _places() -> list[tuple[str, str]]:
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.split("## One failure, function by function")[1].split("\n## ")[0]
    return [
        (path, name) for path, names in PLACE.findall(section) for name in re.findall(r"\w+", names)
    ]


def test_each_function_is_where_the_page_says() -> None:
    places = _places()
    assert len(places) > 40
    missing = [
        f"{path}: {name}"
        for path, name in places
        if not (ROOT / path).is_file()
        or not re.search(rf"(::|def |void |> ){name}\(", (ROOT / path).read_text())
    ]
    assert missing == []


def test_the_way_of_a_failure_is_short() -> None:
    """A machine in between, or a file more, is a decision: this number follows it."""
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.split("## One failure, function by function")[1].split("The start of")[0]
    files = {path for path, _ in PLACE.findall(section)}
    assert len(files) <= 24
    assert sum(len(re.findall(r"\w+", names)) for _, names in PLACE.findall(section)) <= 60
