"""Which command lines select a subcommand, and which a program."""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from elastic import observe
from elastic.cli import subcommands
from elastic.cli.main import console_main, main
from elastic.errors import ConfigError


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


def test_a_file_of_the_name_is_the_program_and_is_reported(
    greet: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("greet").write_text("import sys; sys.exit(5)")
    assert main(["greet"]) == 5
    assert "running the script ./greet, not the subcommand greet" in capsys.readouterr().err
    assert greet == []


def test_a_directory_of_the_name_is_no_program(greet: list[list[str]]) -> None:
    Path("greet").mkdir()
    assert main(["greet"]) == 7
    assert greet == [[]]


@pytest.mark.parametrize(
    "words", [["./greet"], ["--", "greet"], ["--nproc-per-node=1", "greet"], ["--role", "greet"]]
)
def test_in_other_positions_the_name_is_no_subcommand(
    greet: list[list[str]], words: list[str]
) -> None:
    assert main(words) == 2
    assert greet == []


class Ended(BaseException):
    """Instead of the end of this process."""


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *(
            (f"{one.name} --no-such-option", 2)
            for one in subcommands.SUBCOMMANDS
            if one.name != "help"  # which searches the manual for it
        ),
        *((f"{one.name} --help", 0) for one in subcommands.SUBCOMMANDS),
        ("status a b", 2),
        ("drain x --timeout x", 2),
        *((f"{name} x --rdzv-id=a --timeout=0", 2) for name in ("status", "stacks")),
        ("--help", 0),
    ],
)
@pytest.mark.usefixtures("ending")
def test_a_parser_sets_the_exit_status_and_reports_an_error_in_one_line(
    words: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)  # --help needs no package
    monkeypatch.delitem(sys.modules, "elastic.cli.dashboard", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["elastic-launch", *words.split()])
    with pytest.raises(Ended) as ended:
        console_main()
    assert ended.value.args == (code,)
    if code != 0:
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"elastic-launch {words.split()[0]}: ") and line.endswith("--help)")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_deadline_is_refused_as_the_option_drain_is(
    text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["drain", "job", f"--deadline={text}"])
    expected = f"--deadline is {text!r}: expected a number of seconds greater than 0"
    assert expected in capfd.readouterr().err
    with pytest.raises(ConfigError, match="greater than 0"):
        observe.connect("127.0.0.1:1", drain=0.0)


def test_a_token_of_an_observer_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_TOKEN", "short")
    with pytest.raises(ConfigError, match="ELASTIC_TOKEN: the token line 1 has 5 characters"):
        observe.connect("127.0.0.1:1")


def test_a_removed_current_directory_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for option in ("--log-dir=logs", "--event-log=log", "--result-json=result"):
        assert main([option, "--no-python", "/bin/true"]) == 2
        name = option.partition("=")[0]
        assert f"{name} is" in capfd.readouterr().err
    monkeypatch.chdir(tmp_path)
