"""``elastic-launch help [TOPIC]``: prints a page of the manual that the package contains.

TOPIC is a page, the heading of a section, a message, or words, whose places are listed.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from elastic.cli import console, manual_text, subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import ConfigError

# In the package; of an editable installation: beside the sources.
_PLACES = [Path(__file__).resolve().parents[depth] / "docs" for depth in (1, 3)]
PAGES = next((place for place in _PLACES if place.is_dir()), _PLACES[0])

# The groups of mkdocs.yml, and what each page is for.
GROUPS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Start", {
        "start": "the command, from each other launcher; where it was run",
        "from-torchrun": "everything that differs from torchrun, and torch's API",
        "scripts": "training scripts that survive restarts and report progress",
        "clusters": "Slurm, Kubernetes, Ray, SkyPilot, bare hosts; ports",
    }),
    ("Recover", {
        "warm-workers": "restarts without importing torch again (--warm)",
        "snapshots": "ranks that continue from a step held in memory",
        "in-place": "processes that continue when members of the job change",
        "preemption": "all ranks save at one step, then stop (--drain)",
        "high-availability": "when the host of the coordinator is lost",
        "policy": "what follows a failure, excluded hosts, tests of hosts",
    }),
    ("Operate", {
        "observing": "status, dashboard, event log, metrics",
        "hangs": "which rank a hanging job waits for, with its stack",
        "security": "tokens and encryption between launchers",
        "troubleshooting": "exit codes, and every message with its cause and cure",
    }),
    ("Reference", {
        "cli": "options, variables, signals, files, time limits",
        "api": "the Python modules, the C++ library, the key-value store",
    }),
    ("Proof", {
        "evidence": "fault scenes with several launchers, and speed",
    }),
    ("Inside", {
        "architecture": "launcher, extensions, one failure step by step, glossary",
        "rendezvous": "how nodes agree on rounds and on a coordinator",
        "supervision": "how workers are started, watched and killed",
        "protocol": "what is sent between launchers, coordinator and stores",
    }),
)  # fmt: skip


_PER_PAGE = 2  # sections of a page that are listed with the places of a word
_ENTRIES = 3  # of messages
_WORDS_OF_MESSAGE = 3
_SHORTEST_QUOTE = 9  # characters of a message


class Place(NamedTuple):
    """A passage of a page, and the heading above it."""

    topic: str
    heading: str
    line: str


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} help",
        description="Prints a page of the manual, one of its sections, what a message of the "
        "launcher means, or the places of words; "
        "without TOPIC, the list of pages.",
    )
    made.add_argument(
        "topic", metavar="TOPIC", nargs="*", help="a page, a heading, or words of a message"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    parser().parse_known_args(arguments)  # --help; another option is a word to search
    given = " ".join(arguments)
    topic = given.removeprefix("docs/").removesuffix(".md")
    if not topic:
        _show(contents())
    elif topic == "all":
        _show(page(topic))
    else:
        _show_markdown(page(topic))
    return 0


def topics() -> list[str]:
    return sorted(path.stem for path in PAGES.glob("*.md"))


def contents() -> str:
    """The pages by group, each with a sentence."""
    lines = [f"{PROGRAM} help TOPIC prints one of these pages, a section by its heading",
             "(exit-codes), what a message of the launcher means (paste it), or the places of",
             "words (out of memory):"]  # fmt: skip
    for title, pages in GROUPS:
        lines += ["", title, *(f"  {name:<18}{what}" for name, what in pages.items())]
    return "\n".join([*lines, ""])


def page(topic: str) -> str:
    """A page, a section or the places of words as Markdown; of ``all`` that of ``--help all``."""
    if topic == "all":
        from elastic.cli import help

        return help.full_text()
    if topic in topics():
        return _read(topic)
    places = list(_places(topic))
    if found := _section(topic):
        others = [one for one in places if manual_text.slug(one.heading) != manual_text.slug(topic)]
        return found if "-" in topic or not others else f"{found}\n{_listed(topic, others)}"
    entries = _messages(topic)
    if entries or places:
        parts = (
            ["\n".join(entries), "From [troubleshooting](troubleshooting.md)."] if entries else []
        )
        parts += [_listed(topic, places).rstrip()] if places else []
        return "\n\n".join([f"# {topic}", *parts, ""])
    known = [*topics(), *(manual_text.slug(one.heading) for one in _headings())]
    near = difflib.get_close_matches(topic, known, 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"no page of the manual has {topic!r}{hint} ({PROGRAM} help lists the pages)")


def _read(topic: str) -> str:
    return (PAGES / f"{topic}.md").read_text(encoding="utf-8")


def _lines() -> Iterator[Place]:
    """Every passage of the manual, in the order of the groups."""
    for _, pages in GROUPS:
        for topic in pages:
            heading = ""
            for line in manual_text.passages(_read(topic)):
                if line.startswith("#"):
                    heading = line.lstrip("# ")
                yield Place(topic, heading, line)


def _headings() -> Iterator[Place]:
    for place in _lines():
        if place.line.startswith("#") and place.line.lstrip("# ") == place.heading:
            yield place


def sections() -> set[str]:
    """The headings by which a section can be printed: those that one page has, once."""
    counts = collections.Counter(manual_text.slug(one.heading) for one in _headings())
    return {name for name, count in counts.items() if count == 1} - {*topics()}


def _section(topic: str) -> str:
    """The section with this heading and what is below it; empty if there is none."""
    found = next(
        (one for one in _headings() if manual_text.slug(one.heading) == manual_text.slug(topic)),
        None,
    )
    if found is None:
        return ""
    depth = len(found.line) - len(found.line.lstrip("#"))
    _, mark, rest = ("\n" + _read(found.topic)).partition(f"\n{found.line}\n")
    text = re.split(rf"^#{{1,{depth}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{mark.strip()}\n{text.rstrip()}\n\nFrom [{found.topic}]({found.topic}.md).\n"


def _places(topic: str) -> Iterator[Place]:
    """Where the words are: as they are given, else inside other words, else all in one passage."""
    unique = sections()
    shown = [one._replace(line=manual_text.without_links(one.line, unique)) for one in _lines()]
    words = [manual_text.pattern(word) for word in topic.split()]
    for found in (
        [one for one in shown if manual_text.pattern(topic).search(one.line)],
        [one for one in shown if topic.lower() in one.line.lower()],
        [one for one in shown if all(word.search(one.line) for word in words)],
    ):
        if found:
            yield from found
            return


def _messages(text: str) -> list[str]:
    """The entries of a message, of which ``text`` is a part, or a line of the log."""
    if len(text.split()) < _WORDS_OF_MESSAGE:
        return []
    entries = []
    for place in _lines():
        if place.topic == "troubleshooting" and place.line.startswith("* `"):
            quotes = re.findall(r"`([^`]+)`", place.line.partition(" — ")[0])
            known = [one for one in quotes if len(one) >= _SHORTEST_QUOTE]
            shared = sum(len(one) for one in known if one in text or text in one)
            entries.append((-shared, place.line))
    return [line for shared, line in sorted(entries)[:_ENTRIES] if shared]


def _listed(topic: str, places: list[Place]) -> str:
    """The sections of each page that have the words, first those that have them as heading."""
    sought = manual_text.pattern(topic)
    if not any(sought.search(one.line) for one in places):
        sought = re.compile(re.escape(topic.split()[0]), re.IGNORECASE)
    pages: dict[str, dict[str, list[str]]] = {}
    for place in places:
        pages.setdefault(place.topic, {}).setdefault(place.heading, []).append(place.line)

    def defines(line: str) -> bool:
        return sought.match(line.lstrip("|*- `[")) is not None

    def rank(section: tuple[str, list[str]]) -> tuple[bool, bool, int]:
        heading, found = section
        return not sought.search(heading), not any(map(defines, found)), -len(found)

    lines = ["Places of these words:", ""]
    inside = {page for _, group in GROUPS[-2:] for page in group}
    for page, sections in sorted(
        pages.items(), key=lambda one: (one[0] in inside, *min(map(rank, one[1].items()))[:2])
    ):
        best = sorted(sections.items(), key=rank)
        for heading, found in best[:_PER_PAGE]:
            text = min(found, key=lambda line: (line.startswith("#"), not defines(line)))
            lines.append(f"- `help {page}`, {heading}: {manual_text.around(text, sought)}")
        if more := len(best[_PER_PAGE:]):
            lines[-1] += f" (and {more} more section{'s' * (more > 1)})"
    return "\n".join([*lines, ""])


def _show_markdown(text: str) -> None:
    text = manual_text.without_links(text, sections())
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.markdown import Markdown
        except ImportError:
            pass
        else:
            screen = Console()
            with screen.pager(styles=True):
                screen.print(Markdown(text, hyperlinks=False))
            return
    width = min(shutil.get_terminal_size((100, 0)).columns, 120)
    _show(manual_text.plain(text, width))


def _show(text: str) -> None:
    if sys.stdout.isatty():
        import pydoc

        pydoc.pager(text)
        return
    console.show(text)
