"""Reads the values of options from a command line and from the ``PET_*`` variables."""

# Weak point: `arguments` makes an argparse parser of the same options. There a command line that
# this module accepts may have another meaning, or be an error, where no test compares the two.

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from elastic.cli.grammar import Given, scan
from elastic.cli.options import (
    BY_NAME,
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
    found, position = scan(argv, by_name)
    values: dict[str, Value] = {}
    for given in found:
        name = _name(given, by_name)
        if name == "help":
            text = (
                given.text if given.text is not None else "".join(argv[given.end : given.end + 1])
            )
            _print_help(text, is_value=given.is_joined)
        if name in TEXTS and not TEXTS[name]:
            _print_text(name, "")
        option = by_name.get(name)
        is_switch = option is not None and option.is_switch
        if is_switch and given.is_joined:
            _refuse(f"{given.flag} takes no value, but was given {given.text!r}")
        if not is_switch and given.text is None:
            _refuse(f"{given.flag} needs a value")
        if name in TEXTS:
            _print_text(name, given.text or "")
        text = "1" if is_switch else given.text or ""
        if option is not None and option.repeats and name in values:
            text = f"{values[name].text}\n{text}"
        values[name] = Value(text, f"--{name}")
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
    """The value of ``--result-json``, also of a command line that cannot be parsed; "": none."""
    texts = [given.text for given in scan(argv, BY_NAME)[0] if given.names == ["result-json"]]
    return texts[-1] or "" if texts else environ.get(f"{ENV_PREFIX}RESULT_JSON", "")


def _name(given: Given, by_name: Mapping[str, Option]) -> str:
    """The option of a flag, which may be abbreviated and have underscores for dashes."""
    flag, names = given.flag, given.names
    if len(names) > 1:
        _refuse(f"{flag} is ambiguous: it could be {_list(f'--{long}' for long in names)}")
    if not names:
        known = [f"--{long}" for long in (*by_name, *TEXTS)]
        long = flag if flag.startswith("--") else f"-{flag}"
        _refuse(f"there is no option {flag}{_did_you_mean(long, known)}")
    return names[0]


def _print_help(what: str, is_value: bool) -> NoReturn:
    """Prints one screen, or all; rejects any other value that was joined with ``=``."""
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
    from elastic.cli import console

    with contextlib.suppress(BrokenPipeError):  # as in `--help | head -1`
        console.show(text)
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
