"""How options are written on a command line, and where they end: at PROGRAM.

No argument after it is parsed, not even to check whether it could be an option, as argparse does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from elastic.cli.options import BY_SHORT, OF_TORCHRUN, TEXTS, Option


class Given(NamedTuple):
    """An option, as it is written on a command line."""

    flag: str
    names: list[str]  # the options that the flag may stand for: one, unless there is an error
    text: str | None  # the value; None: there is none
    is_joined: bool  # --flag=value
    end: int  # the position of the next word


def scan(
    argv: Sequence[str], by_name: Mapping[str, Option], by_short: Mapping[str, Option] = BY_SHORT
) -> tuple[list[Given], int]:
    """The options before PROGRAM, and the position of PROGRAM.

    Reports no errors; a word after an unknown option counts as its value.
    """
    found: list[Given] = []
    position = 0

    def add(flag: str, names: list[str], text: str | None) -> None:
        nonlocal position
        option = by_name.get(names[0]) if len(names) == 1 else None
        is_joined = text is not None
        has_value = names != ["help"] and not (option is not None and option.is_switch)
        if not is_joined and has_value and argv[position:] and not _is_option(argv[position]):
            text = argv[position]
            position += 1
        found.append(Given(flag, names, text, is_joined, position))

    while position < len(argv) and _is_option(argv[position]):
        word = argv[position]
        position += 1
        if word == "--":
            break
        if word.startswith("--"):
            flag, equals, text = word.partition("=")
            add(flag, _matches(flag, by_name), text if equals else None)
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            option = by_short.get(letter)
            if letter == "h":
                add("-h", ["help"], None)
            elif option is None:
                add(word, [], letters or None)
                break
            elif option.is_switch:
                add(f"-{letter}", [option.name], None)
            else:
                add(f"-{letter}", [option.name], letters.removeprefix("=") if letters else None)
                break
    return found, position


def _is_option(word: str) -> bool:
    """Whether a word is an option; ``-`` and negative numbers are not."""
    return len(word) > 1 and word[0] == "-" and not word[1:].isdigit()


def _matches(flag: str, by_name: Mapping[str, Option]) -> list[str]:
    name = flag[2:].replace("_", "-")
    known = dict.fromkeys((*by_name, *TEXTS))
    if name in known:
        return [name]
    matches = [long for long in known if long.startswith(name)]
    of_torchrun = [long for long in matches if long in OF_TORCHRUN]
    return of_torchrun if len(of_torchrun) == 1 else matches
