"""docs/troubleshooting.md quotes messages of the program: each quote has to be in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
# The messages of these are what an operator reads during a job; each must be on the page.
COVERED = (
    "core/session/session_connection.cc",
    "host/coordinator/hosting.cc",
    "host/membership/session_attempt.cc",
)
SHORTEST = 22  # characters; a shorter literal is a part that means nothing alone


def literals(source: Path) -> Iterator[str]:
    """The string literals of a file; adjacent ones of C++ are joined."""
    text = source.read_text()
    if source.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
        return
    text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'"\s*\n?\s*(?:\+\s*)?"', "", text)
    for found in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', text):
        yield found[1]


def sources() -> str:
    files = [*(ROOT / "csrc").rglob("*.cc"), *(ROOT / "csrc").rglob("*.h")]
    files += (ROOT / "python").rglob("*.py")
    return "\0".join(text for file in files for text in literals(file))


def quotes() -> list[str]:
    """The code spans in the first column of the tables of messages."""
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            found += re.findall(r"`([^`]+)`", line.split(" | ")[0])
    return found


def test_every_quoted_message_is_a_message_of_the_program() -> None:
    every = sources()
    assert len(quotes()) > 60
    unknown = [quote for quote in quotes() if quote.strip() not in every]
    assert unknown == []


def test_every_message_about_waiting_for_the_coordinator_is_on_the_page() -> None:
    page = PAGE.read_text()
    missing = [
        text
        for name in COVERED
        for text in literals(ROOT / "csrc" / name)
        if len(text) >= SHORTEST and " " in text and text.strip(" :,") not in page
    ]
    assert missing == []


def test_every_exit_code_of_the_launcher_is_explained() -> None:
    header = (ROOT / "csrc/include/elastic/agent.h").read_text()
    codes = re.findall(r"kExit\w+ = (\d+)", header)
    explained = (ROOT / "docs/exit-codes.md").read_text()
    assert len(codes) >= 9
    assert [code for code in codes if f"| {code} |" not in explained] == []
