"""The pages of ``elastic-launch help``, and that every page which a message names exists."""

from __future__ import annotations

import ast
import re

import pytest
from elastic.cli import help, manual, manual_text
from elastic.errors import ConfigError

from support.paths import ROOT

NAMED = re.compile(r"elastic-launch help ([a-z][\w-]*)")


def test_the_pages_are_those_of_the_documents_in_the_groups_of_the_site() -> None:
    named = [name for _, pages in manual.GROUPS for name in pages]
    assert sorted(named) == sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    site = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    assert re.findall(r"([\w-]+)\.md$", site, re.MULTILINE) == ["index", *named]
    assert re.findall(r"^  - (\w+):$", site, re.MULTILINE) == [title for title, _ in manual.GROUPS]
    for name in named:
        assert f"  {name} " in manual.contents()
    assert max(map(len, manual.contents().splitlines())) <= 80


@pytest.mark.parametrize("words", [["hangs"], ["hangs.md"], ["docs/hangs.md"]])
def test_a_page_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert manual.run(words) == 0
    assert capsys.readouterr().out.startswith("Hangs\n=====\n")


def test_a_section_is_printed_by_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert manual.run(["exit-codes"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Exit codes\n----------\n") and "137 SIGKILL" in printed
    assert printed.endswith("From troubleshooting (elastic-launch help troubleshooting).\n")


def listed(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """The page and the heading of each place."""
    assert manual.run(words) == 0
    printed = " ".join(capsys.readouterr().out.split()).partition("Places of these words:")[2]
    return re.findall(r"- help ([\w-]+), ([^:]+):", printed)


@pytest.mark.parametrize(("words", "found"), [
    (["node_timeout"], [("cli", "Several nodes"), ("rendezvous", "Events and consequences")]),
    (["oom"], [("troubleshooting", "By symptom")]),
    (["out", "of", "memory"], [("troubleshooting", "Workers")]),
    (["logs"], [("cli", "Limits of log files"), ("cli", "Output")]),
    (["--log-dir"], [("cli", "Output")]),
    (["restart"], [("scripts", "Writing training scripts that survive restarts")]),
    (["nccl"], [("start", "Where it was run")]),  # after the section with this heading
    (["address", "already", "in"], []),
    (["kubernetes", "token"], [("clusters", "A token under Kubernetes")]),
])  # fmt: skip
def test_the_places_of_words_are_listed(
    words: list[str], found: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    if not found:
        with pytest.raises(ConfigError, match="no page of the manual has"):
            manual.run(words)
        return
    assert set(found) <= set(listed(words, capsys))


def test_a_word_inside_another_word_is_no_place_and_headings_are_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = listed(["port"], capsys)
    assert places[0] == ("clusters", "Ports and firewalls")
    assert ("start", "Support") not in places  # support, import, report


@pytest.mark.parametrize(("message", "cure"), [
    ("elastic-launch: waiting for a coordinator at n:29400: cannot resolve n: unknown, gives up",
     "no agent hosts the coordinator yet"),
    ("no port of 3:4 is free on this node", "a greater range"),
    ("killed by the kernel for", "a smaller batch"),
])  # fmt: skip
def test_a_message_is_explained(
    message: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert manual.run([message]) == 0
    assert cure in " ".join(capsys.readouterr().out.split())


def test_sections_of_other_pages_with_the_same_heading_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    manual.run(["slurm"])
    printed = capsys.readouterr().out
    assert printed.startswith("Slurm\n-----\n") and "help clusters, Notice by Slurm" in printed


def test_links_are_commands_and_none_is_left() -> None:
    sections = manual.sections()
    pages = (manual.page(topic) for topic in manual.topics())
    text = "".join(manual_text.without_links(page, sections) for page in pages)
    assert "(`elastic-launch help preemption`)" in text
    assert "(`elastic-launch help which-job`)" in text  # a section
    assert "stateDiagram" not in text
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []
    assert "<details" not in text and "<!--" not in text
    dead = [name for name in NAMED.findall(text) if not manual.page(name)]
    assert dead == []


def test_a_table_is_columns_or_if_it_is_too_wide_a_list() -> None:
    table = "| a | b |\n|---|---:|\n| `x` | 1 |\n"
    assert manual_text.plain(table, 80).splitlines() == ["a  b", "-  -", "x  1"]
    wide = f"| code | meaning | retry? |\n|---|---|---|\n| 2 | {'word ' * 30}| no |\n"
    lines = manual_text.plain(wide, 60).splitlines()
    assert lines[0] == "2" and lines[1].startswith("    meaning: word")
    assert lines[-1] == "    retry?: no" and max(map(len, lines)) <= 60


def test_no_line_of_a_table_or_a_paragraph_is_wider_than_the_terminal() -> None:
    for topic in manual.topics():
        text = manual_text.without_links(manual.page(topic))
        for line in manual_text.plain(text, 100).splitlines():
            longest = max(map(len, line.split()), default=0)
            assert len(line) <= 100 or line.startswith("    ") or longest > 60, (topic, line)


def test_all_options_are_a_page() -> None:
    assert manual.page("all") == help.full_text()


def test_an_unknown_topic_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean preemption"):
        manual.page("premption")


def literals(source: str) -> list[str]:
    """The strings of a module, without its docstrings."""
    tree = ast.parse(source)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def test_messages_name_pages_that_exist_and_no_files() -> None:
    texts = [
        text
        for path in (ROOT / "python").rglob("*.py")
        for text in literals(path.read_text(encoding="utf-8"))
    ]
    for path in [*(ROOT / "csrc").rglob("*.cc"), *(ROOT / "csrc").rglob("*.h")]:
        texts += re.findall(r'"((?:[^"\\\n]|\\.)*)"', path.read_text(encoding="utf-8"))
    assert [text for text in texts if re.search(r"docs/[\w-]+\.md", text)] == []
    named = {name for text in texts for name in NAMED.findall(text)}
    assert len(named) >= 5
    assert named - {*manual.topics()} == set()
