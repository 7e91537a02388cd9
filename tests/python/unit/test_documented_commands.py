"""Each complete command line in the README, the manual and the examples is accepted."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic.cli import resolve, subcommands

from support.paths import ROOT

# Not a command line to type: it is shortened, a scheme of commands, or has a shell's variables.
SHORTENED = re.compile(r"…|\.\.\.|──|\[options\]|\$")
COMMENT = re.compile(r"\s{2,}\S.*| &&.*| \|.*| > .*| # .*")
PAGES = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py"))


def commands() -> Iterator[tuple[str, str]]:
    """The page and the arguments of each command that is a line, or several with ``\\``."""
    for page in PAGES:
        text = re.sub(r"\\\\?\n\s*", "", page.read_text())
        for line in re.findall(r"^ *elastic-launch (.+)$", text, re.MULTILINE):
            if not SHORTENED.search(line):
                yield page.name, COMMENT.sub("", line)


COMMANDS = sorted(set(commands()))


def test_there_are_commands() -> None:
    pages = {page for page, _ in COMMANDS}
    assert {"README.md", "in-place.md", "cli.md", "train_inplace.py", "observing.md"} <= pages


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_documented_command_is_accepted(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    subcommand = subcommands.find(words)
    if subcommand is None:
        resolve.parse(["--dry-run", *words], {})
    elif hasattr(module := importlib.import_module(subcommand.module), "parser"):
        module.parser().parse_args(words[1:])
