"""``elastic-launch help [TOPIC]``: prints a page of the manual that the package contains."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from elastic.cli import console, subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import ConfigError

# In the package; of an editable installation: beside the sources.
_PLACES = [Path(__file__).resolve().parents[depth] / "docs" for depth in (1, 3)]
PAGES = next((place for place in _PLACES if place.is_dir()), _PLACES[0])
# A link to another page, which a terminal cannot follow.
_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)?(?:docs/)?([\w-]+)\.md(?:#[\w-]*)?\)")

_COMMENT = re.compile(r"<!--.*?-->\n+")


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} help",
        description="Prints a page of the manual; without TOPIC, the list of pages.",
    )
    made.add_argument("topic", metavar="TOPIC", nargs="?", default="", help="the name of a page")
    return made


def run(arguments: Sequence[str]) -> int:
    topic = parser().parse_args(arguments).topic.removeprefix("docs/").removesuffix(".md")
    _show(contents() if not topic else page(topic))
    return 0


def topics() -> list[str]:
    return sorted(path.stem for path in PAGES.glob("*.md"))


def contents() -> str:
    """The pages, each with its title."""
    rows = [f"  {name:<24}{_title(name)}" for name in topics()]
    return "\n".join([f"{PROGRAM} help TOPIC prints one of these pages:", "", *rows, ""])


def page(topic: str) -> str:
    """The text of a page; ``all``: the text of ``--help all``."""
    if topic == "all":
        from elastic.cli import help

        return help.full_text()
    known = topics()
    if topic not in known:
        near = difflib.get_close_matches(topic, known, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no page {topic!r}{hint} ({PROGRAM} help lists the pages)")
    text = (PAGES / f"{topic}.md").read_text(encoding="utf-8")
    return _LINK.sub(rf"\1 ({PROGRAM} help \2)", _COMMENT.sub("", text))


def _title(name: str) -> str:
    with open(PAGES / f"{name}.md", encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()


def _show(text: str) -> None:
    if sys.stdout.isatty():
        import pydoc

        pydoc.pager(text)
        return
    console.show(text)
