"""The pages of ``elastic-launch help``, and that every page which a message names exists."""

from __future__ import annotations

import ast
import re

import pytest
from elastic.cli import help, manual
from elastic.errors import ConfigError

from support.paths import ROOT

NAMED = re.compile(r"elastic-launch help ([a-z][\w-]*)")


def test_the_pages_are_those_of_the_documents() -> None:
    assert manual.topics() == sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    for topic in manual.topics():
        assert f"  {topic} " in manual.contents()


@pytest.mark.parametrize("words", [["exit-codes"], ["exit-codes.md"], ["docs/exit-codes.md"]])
def test_a_page_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert manual.run(words) == 0
    assert capsys.readouterr().out.startswith("# Exit codes")


def test_links_between_pages_are_commands() -> None:
    text = "".join(manual.page(topic) for topic in manual.topics())
    assert "(elastic-launch help preemption)" in text
    assert re.findall(r"\]\([\w-]+\.md", text) == []


def test_all_options_are_a_page() -> None:
    assert manual.page("all") == help.full_text()


def test_an_unknown_page_is_refused_with_the_nearest() -> None:
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
    assert named - set(manual.topics()) == set()
