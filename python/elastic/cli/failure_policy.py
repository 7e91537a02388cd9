"""The rules of ``--failure-policy``: what follows a failure. docs/policy.md has the format."""

from __future__ import annotations

import difflib
import importlib
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from elastic.errors import ConfigError
from elastic.text import format_ranges, parse_exit_codes, parse_ranges

RULES_MAX = 99
TEXT_BYTES_MAX = 900  # of an error; core reads 1024 bytes for a rule

# The name of a condition, and how core spells it. Those with "=" take a value.
_CONDITIONS = {
    "any": "",
    "check": "check",
    "class": "class:",
    "exit": "exit:",
    "hang": "hang",
    "lost-node": "node-lost",
    "signal": "exit:",
    "straggler": "straggler",
    "worker": "worker",
}
_CLASSES = ("user-worker", "user-input", "platform", "infrastructure")
_ACTIONS = ("exclude", "restart", "stop")
_KEYS = ("count", "do", "error", "for", "host_count", "max", "on", "same_host", "within")
_PROGRESS = "stop_without_progress"
_FUNCTION = "function"
_FILE_KEYS = (_FUNCTION, "rule", _PROGRESS)


class Policy(NamedTuple):
    rules: tuple[str, ...] = ()  # as core reads them (core/rendezvous/failure_policy.h)
    stop_without_progress: int = 0  # rounds; 0: no limit
    function: str = ""  # which decides where no rule matches; "": none


def read(path: str, origin: str) -> Policy:
    """The policy of a file, checked."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{origin}: cannot read {path}: {why}") from error
    return parse(content, path)


def parse(content: str, path: str) -> Policy:
    """The policy of a file's content. ``path`` is for messages."""
    loads, error_type = _toml()
    try:
        found = loads(content)
    except error_type as error:
        raise ConfigError(f"{path}: {error}") from None
    where = _Places(content, path)
    for key in found:
        if key not in _FILE_KEYS:
            hint = _hint(key, _FILE_KEYS)
            raise ConfigError(where.fault(where.key(key), f"unknown key {key!r}{hint}"))
    rounds = found.get(_PROGRESS, 0)
    if not _is_number(rounds, 1) and _PROGRESS in found:
        fault = f"{_PROGRESS} is {rounds!r}: expected a whole number from 1"
        raise ConfigError(where.fault(where.key(_PROGRESS), fault))
    function = found.get(_FUNCTION, "")
    if not _is_name(function) and _FUNCTION in found:
        fault = f"{_FUNCTION} is {function!r}: expected the name of an entry point, or MODULE:NAME"
        raise ConfigError(where.fault(where.key(_FUNCTION), fault))
    rules = found.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(one, dict) for one in rules):
        raise ConfigError(where.fault(where.key("rule"), "each rule begins with [[rule]]"))
    if not rules and not rounds and not function:
        raise ConfigError(f"{path}: the file has no [[rule]]")
    if len(rules) > RULES_MAX:
        raise ConfigError(f"{path}: there are {len(rules)} rules: at most {RULES_MAX} are allowed")
    read_rules = (_Reader(where, index, values).rule() for index, values in enumerate(rules))
    return Policy(tuple(read_rules), rounds, function)


def settings(policy: Policy) -> dict[str, str]:
    """The settings of the job in which core finds the policy."""
    found = {f"failure policy, rule {n:02}": rule for n, rule in enumerate(policy.rules, 1)}
    if policy.stop_without_progress:
        found[f"failure policy, {_PROGRESS}"] = str(policy.stop_without_progress)
    if policy.function:
        found[f"failure policy, {_FUNCTION}"] = policy.function
    return found


class _Places:
    """The lines of rules and keys: ``tomllib`` does not tell them."""

    def __init__(self, content: str, path: str) -> None:
        self._lines = content.splitlines()
        self._path = path
        self.rules = [
            number
            for number, line in enumerate(self._lines, 1)
            if re.match(r"\s*\[\[\s*[\"']?rule[\"']?\s*\]\]", line)
        ]

    def key(self, name: str, first: int = 1, last: int | None = None) -> int:
        """The line of a key between two lines; ``first`` if it is spelled in an unusual way."""
        for number, line in enumerate(self._lines[first - 1 : last], first):
            if re.match(rf"\s*(\[\[?\s*)?[\"']?{re.escape(name)}\b", line):
                return number
        return first

    def of_rule(self, index: int, name: str = "") -> int:
        begin = self.rules[index] if index < len(self.rules) else 1
        end = self.rules[index + 1] - 1 if index + 1 < len(self.rules) else None
        return self.key(name, begin, end) if name else begin

    def fault(self, line: int, message: str) -> str:
        return f"{self._path}:{line}: {message}"


class _Reader:
    """Reads one rule."""

    def __init__(self, where: _Places, index: int, values: Mapping[str, Any]) -> None:
        self._where = where
        self._index = index
        self._values = values

    def rule(self) -> str:
        for key in self._values:
            if key not in _KEYS:
                raise ConfigError(self._fault(key, f"unknown key {key!r}{_hint(key, _KEYS)}"))
        action = self._action()
        conditions = self._conditions()
        words = [f"line={self._where.of_rule(self._index)}"]
        if conditions:
            words.append("on=" + ";".join(conditions))
        words += self._host_limits(action, conditions)
        words.append(f"do={action}")
        words += self._limits(action)
        error = self._values.get("error", "")
        is_given = "error" in self._values
        if not isinstance(error, str) or not error.isprintable() or is_given != bool(error):
            raise ConfigError(
                self._fault("error", f"error is {error!r}: expected a text of one line")
            )
        if len(error.encode()) > TEXT_BYTES_MAX:
            raise ConfigError(self._fault("error", f"error is longer than {TEXT_BYTES_MAX} bytes"))
        if error:
            words.append(f"text={error}")
        return " ".join(words)

    def _fault(self, key: str, message: str) -> str:
        line = self._where.of_rule(self._index, key)
        return self._where.fault(line, f"rule {self._index + 1}: {message}")

    def _action(self) -> str:
        action = self._values.get("do")
        if action not in _ACTIONS:
            expected = 'expected "restart", "exclude" or "stop"'
            if action is None:
                raise ConfigError(self._fault("", f"it has no key do: {expected}"))
            raise ConfigError(
                self._fault("do", f"do is {action!r}: {expected}{_near(action, _ACTIONS)}")
            )
        return str(action)

    def _conditions(self) -> list[str]:
        given = self._values.get("on", "any")
        texts = given if isinstance(given, list) else [given]
        if not texts or not all(isinstance(one, str) for one in texts):
            raise ConfigError(
                self._fault("on", f"on is {given!r}: expected a text, or a list of texts")
            )
        found = [self._condition(text) for text in texts]
        if "" in found:
            return []
        # In one spelling: nodes compare their rules.
        codes = ",".join(one.removeprefix("exit:") for one in found if one.startswith("exit:"))
        others = {one for one in found if not one.startswith("exit:")}
        exits = [f"exit:{format_ranges(parse_ranges(codes))}"] if codes else []
        return [*exits, *sorted(others)]

    def _condition(self, text: str) -> str:
        name, _, value = text.strip().partition(" ")
        value = value.replace(" ", "")
        if name not in _CONDITIONS:
            raise ConfigError(
                self._fault("on", f"unknown condition {text!r}{_hint(name, _CONDITIONS)}")
            )
        core = _CONDITIONS[name]
        if core.endswith(":") != bool(value):
            verb = "needs a value" if core.endswith(":") else "takes no value"
            raise ConfigError(self._fault("on", f"the condition {text!r} {verb}"))
        if name == "exit":
            parse_exit_codes(value, self._fault("on", repr(text)), "exit 3,64-78")
        elif name == "signal":
            value = self._signals(value)
        elif name == "class" and value not in _CLASSES:
            raise ConfigError(self._fault("on", f"unknown class {value!r}{_hint(value, _CLASSES)}"))
        return core + value

    def _signals(self, value: str) -> str:
        numbers = []
        for name in value.upper().split(","):
            known = signal.Signals.__members__
            number = known.get(name if name.startswith("SIG") else f"SIG{name}")
            if number is None:
                raise ConfigError(
                    self._fault("on", f"there is no signal {name!r}{_hint('SIG' + name, known)}")
                )
            numbers.append(str(128 + number))
        return ",".join(numbers)

    def _number(self, key: str, least: int) -> int:
        """0: not given."""
        value = self._values.get(key)
        if value is None:
            return 0
        if not _is_number(value, least):
            raise ConfigError(
                self._fault(key, f"{key} is {value!r}: expected a whole number from {least}")
            )
        return int(value)

    def _host_limits(self, action: str, conditions: list[str]) -> list[str]:
        words = []
        if same_host := self._number("same_host", 2):
            words.append(f"host={same_host}")
        if host_count := self._number("host_count", 2):
            words.append(f"times={host_count}")
        idle = self._number("for", 1)
        lags = "straggler" in conditions
        if lags and (conditions != ["straggler"] or action != "exclude" or not idle):
            raise ConfigError(
                self._fault(
                    "on",
                    'on = "straggler" stands alone in its rule, with for = SECONDS and '
                    'do = "exclude"',
                )
            )
        if idle and not lags:
            raise ConfigError(self._fault("for", 'for has no effect without on = "straggler"'))
        if lags:
            words.append(f"for={idle}")
        return words

    def _limits(self, action: str) -> list[str]:
        words = []
        count = self._values.get("count")
        if count is not None and not isinstance(count, bool):
            raise ConfigError(self._fault("count", f"count is {count!r}: expected true or false"))
        most, within = self._number("max", 1), self._number("within", 1)
        if action == "stop":
            for key in ("count", "max", "within"):
                if key in self._values:
                    raise ConfigError(self._fault(key, f'{key} has no effect with do = "stop"'))
        if within and not most and "host_count" not in self._values:
            fault = "within has no effect without max or host_count"
            raise ConfigError(self._fault("within", fault))
        if count is not None:
            words.append(f"count={int(count)}")
        if most:
            words.append(f"max={most}")
        if within:
            words.append(f"within={within}")
        return words


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _is_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w.-]+(:[\w.]+)?", value) is not None


def _hint(given: object, known: Iterable[str]) -> str:
    return _near(given, known) or f"; known are {', '.join(sorted(known)[:12])}"


def _near(given: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(given), sorted(known), 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _toml() -> tuple[Callable[[str], dict[str, Any]], type[Exception]]:
    for name in ("tomllib", "tomli"):  # the second on Python 3.10
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return module.loads, module.TOMLDecodeError
    raise ConfigError("--failure-policy needs the package tomli on Python 3.10: pip install tomli")
