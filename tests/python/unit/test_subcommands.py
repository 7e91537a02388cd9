"""Which command lines select a subcommand, and which a program."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest
from elastic.cli import subcommands
from elastic.cli.main import main


@pytest.fixture
def greet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """A subcommand ``greet`` that records its arguments, and an empty current directory."""
    calls: list[list[str]] = []
    module = types.ModuleType("greet_subcommand")

    def run(arguments: Sequence[str]) -> int:
        calls.append(list(arguments))
        return 7

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "greet_subcommand", module)
    table = (*subcommands.SUBCOMMANDS, subcommands.Subcommand("greet", "greet_subcommand", "Hi."))
    monkeypatch.setattr(subcommands, "SUBCOMMANDS", table)
    monkeypatch.chdir(tmp_path)
    return calls


def test_the_first_argument_selects_a_subcommand(greet: list[list[str]]) -> None:
    assert main(["greet", "--option", "x"]) == 7
    assert greet == [["--option", "x"]]


def test_a_file_of_the_name_is_the_program(greet: list[list[str]]) -> None:
    Path("greet").write_text("import sys; sys.exit(5)")
    assert main(["greet"]) == 5
    assert greet == []


@pytest.mark.parametrize(
    "words", [["./greet"], ["--", "greet"], ["--nproc-per-node=1", "greet"], ["--role", "greet"]]
)
def test_in_other_positions_the_name_is_no_subcommand(
    greet: list[list[str]], words: list[str]
) -> None:
    assert main(words) == 2
    assert greet == []
