"""Parses the arguments of a command line and the ``PET_*`` variables.

Options end at PROGRAM: no argument after it is parsed, not even to check whether it could be an
option. (argparse does check them.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from elastic.cli.options import (
    BY_NAME,
    BY_SHORT,
    BY_VARIABLE,
    ENV_PREFIX,
    PROGRAM,
    TEXTS,
    Option,
    shells,
)
from elastic.errors import ConfigError

_DASHES = ("\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2015", "\u2212")

# The variables that Kubernetes sets for a service.
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?$")


class Value(NamedTuple):
    """The value of an option and, for messages, its origin: ``--role`` or ``PET_ROLE``."""

    text: str
    origin: str


class CommandLine(NamedTuple):
    """A command line, parsed. ``values`` has only the options that were given."""

    values: dict[str, Value]
    program: str
    arguments: tuple[str, ...]
    warnings: list[str]  # about settings that are accepted, but unknown or without effect

    def choices(self, name: str) -> tuple[str, ...]:
        return BY_NAME[name].choices

    def has_value(self, name: str) -> bool:
        return name in self.values or BY_NAME[name].default != ""

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value.text if value else BY_NAME[name].default

    def switch(self, name: str) -> bool:
        return self.text(name) == "1"

    def origin(self, name: str) -> str:
        value = self.values.get(name)
        return value.origin if value else f"--{name}"


def read(
    argv: Sequence[str], environ: Mapping[str, str], more: Sequence[Option] = ()
) -> CommandLine:
    """Parses ``argv`` and the ``PET_*`` variables; an option wins over its variable.

    ``more``: options that are accepted on the command line in addition. Raises ConfigError for an
    unknown option. Options such as ``--help`` print their text and end the program.
    """
    given, program, arguments = _parse(argv, {option.name: option for option in more} | BY_NAME)
    warnings: list[str] = []
    values = _from_environment(environ, warnings) | given
    return CommandLine(values, program, arguments, warnings)


def _parse(
    argv: Sequence[str], by_name: Mapping[str, Option]
) -> tuple[dict[str, Value], str, tuple[str, ...]]:
    values: dict[str, Value] = {}
    position = 0

    def next_word(flag: str) -> str:
        nonlocal position
        if position == len(argv) or _is_option(argv[position]):
            _refuse(f"{flag} needs a value")
        position += 1
        return argv[position - 1]

    while position < len(argv) and _is_option(argv[position]):
        word = argv[position]
        position += 1
        if word == "--":
            break
        if word.startswith("--"):
            flag, equals, text = word.partition("=")
            name = _full_name(flag, by_name)
            if name == "help":
                _print_help(text if equals else "".join(argv[position : position + 1]), equals)
            if name in TEXTS:
                needs_value = bool(TEXTS[name])
                _print_text(name, (text if equals else next_word(flag)) if needs_value else "")
            option = by_name[name]
            if option.is_switch and equals:
                _refuse(f"{flag} takes no value, but was given {text!r}")
            text = "1" if option.is_switch else text if equals else next_word(flag)
            values[option.name] = Value(text, f"--{option.name}")
            continue
        letters = word[1:]
        if letters == "h":
            _print_help("".join(argv[position : position + 1]))
        while letters:
            letter, letters = letters[0], letters[1:]
            option = _short_option(letter, word)
            text = "1"
            if not option.is_switch:
                text = letters.removeprefix("=") if letters else next_word(f"-{letter}")
                letters = ""
            values[option.name] = Value(text, f"--{option.name}")
    if position == len(argv):
        _refuse(f"the following arguments are required: PROGRAM{_taken(values)}")
    if argv[position][0:1] in _DASHES:
        _refuse(f"{argv[position]} begins with a typographic dash: type -- instead")
    return values, argv[position], tuple(argv[position + 1 :])


def _taken(values: Mapping[str, Value]) -> str:
    """A hint if the last option has taken PROGRAM for its value."""
    if not values:
        return ""
    value = list(values.values())[-1]
    if value.text == "1" or not os.path.isfile(value.text):
        return ""
    return f"; {value.origin} took {value.text} as its value"


def result_file(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The value of ``--result-json``, also of a command line that cannot be parsed; "": none.

    A word after an unknown option is taken for its value, and not for PROGRAM.
    """
    found = environ.get(f"{ENV_PREFIX}RESULT_JSON", "")
    words = list(reversed(argv))
    while words and _is_option(words[-1]):
        word = words.pop()
        if word == "--":
            break
        flag, equals, text = word.partition("=")
        if word.startswith("--"):
            matches = _matches(flag, BY_NAME)
            option = BY_NAME.get(matches[0]) if len(matches) == 1 else None
            has_value = option is None or not option.is_switch
        else:
            option = None
            letters = word[1:]
            while letters and (known := BY_SHORT.get(letters[0])) and known.is_switch:
                letters = letters[1:]
            has_value = len(letters) == 1
        if has_value and not equals:
            text = words.pop() if words and not _is_option(words[-1]) else ""
        if option is not None and option.name == "result-json":
            found = text
    return found


def _is_option(word: str) -> bool:
    """Whether a word is an option; ``-`` and negative numbers are not."""
    return len(word) > 1 and word[0] == "-" and not word[1:].isdigit()


def _full_name(flag: str, by_name: Mapping[str, Option]) -> str:
    """The option of a long flag, which may be abbreviated and have underscores for dashes."""
    matches = _matches(flag, by_name)
    if len(matches) > 1:
        _refuse(f"{flag} is ambiguous: it could be {_list(f'--{long}' for long in matches)}")
    if not matches:
        known = [f"--{long}" for long in (*by_name, *TEXTS)]
        _refuse(f"there is no option {flag}{_did_you_mean(flag, known)}")
    return matches[0]


def _matches(flag: str, by_name: Mapping[str, Option]) -> list[str]:
    name = flag[2:].replace("_", "-")
    known = (*by_name, *TEXTS)
    return [name] if name in known else [long for long in known if long.startswith(name)]


def _short_option(letter: str, word: str) -> Option:
    if letter == "h":
        _print_help()
    if letter not in BY_SHORT:
        _refuse(
            f"there is no option {word}{_did_you_mean(f'-{word}', [f'--{n}' for n in BY_NAME])}"
        )
    return BY_SHORT[letter]


def _print_help(what: str = "", is_value: str = "") -> NoReturn:
    """One screen, or all of it; another word is refused if it is the option's value."""
    from elastic.cli import help

    if is_value and what != "all":
        _refuse(f"--help is {what!r}: expected all, or no value")
    _print_and_exit(help.full_text() if what == "all" else help.text())


def _print_text(what: str, value: str) -> NoReturn:
    if what == "print-completion":
        if value not in shells():
            _refuse(f"--print-completion is {value!r}: expected one of {', '.join(shells())}")
        from elastic.cli import arguments

        text = arguments.completion(arguments.parser({}), value)
    else:
        from elastic import _C

        text = f"{PROGRAM} {_C.__version__}\n"
    _print_and_exit(text)


def _print_and_exit(text: str) -> NoReturn:
    try:
        print(text, end="", flush=True)
    except OSError:  # the reader has closed the pipe, as in `--help | head -1`
        raise SystemExit(0) from None
    raise SystemExit(0)


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message} ({PROGRAM} --help all lists the options)")


def _from_environment(environ: Mapping[str, str], warnings: list[str]) -> dict[str, Value]:
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        option = BY_VARIABLE.get(variable)
        if option is None:
            # Not always a typo: Kubernetes sets PET_STORE_PORT for a service called pet-store.
            nearest = "" if _SERVICE.search(variable) else _near(variable, list(BY_VARIABLE), 0.8)
            if nearest:
                warnings.append(
                    f"{variable} is an unknown variable and is ignored (did you mean {nearest}?)"
                )
            continue
        if option.is_switch and text not in ("0", "1"):
            raise ConfigError(f"{variable} is {text!r}: expected 0 or 1")
        values[option.name] = Value(text, variable)
    return values


def _did_you_mean(given: str, known: list[str]) -> str:
    nearest = _near(given, known, 0.7)
    return f"; did you mean {nearest}?" if nearest else ""


def _near(given: str, known: list[str], cutoff: float) -> str:
    """The name that was probably meant; "": none."""
    import difflib  # needed after a typo only

    begun = [name for name in known if name.startswith(given)] if len(given) > len("PET_") else []
    close = begun or difflib.get_close_matches(given, known, 1, cutoff)
    return close[0] if close else ""


def _list(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def pass_local_rank(line: CommandLine) -> CommandLine:
    """The command line of a script that reads its local rank from its first argument."""
    if line.switch("no-python"):
        raise ConfigError(
            f"{line.origin('no-python')} needs --use-env: PROGRAM is no Python script"
        )
    return line._replace(arguments=("--local-rank=${local_rank}", *line.arguments))
