"""The file of --failure-policy."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from elastic.cli import failure_policy
from elastic.errors import ConfigError

GOOD = """\
# What a failure means here.
[[rule]]
on = "exit 3,64-78"
do = "stop"

[[rule]]
on = ["signal KILL", "class platform"]
do = "restart"
count = false
max = 3
within = 3600

[[rule]]
on = "hang"
error = "CUDA error: x = 1"
same_host = 2
do = "stop"

[[rule]]
do = "restart"
max = 5
"""

EXCLUDING = """\
stop_without_progress = 3

[[rule]]
on = "worker"
host_count = 3
within = 3600
do = "exclude"

[[rule]]
on = "straggler"
for = 60
do = "exclude"
"""


def test_a_check_is_a_condition() -> None:
    policy = failure_policy.parse("[[rule]]\non = 'check'\ndo = 'stop'", "policy.toml")
    assert policy.rules[0] == "line=1 on=check do=stop"


def test_rules_are_written_for_core() -> None:
    policy = failure_policy.parse(GOOD, "policy.toml")
    rules = policy.rules
    assert policy.stop_without_progress == 0
    assert list(rules) == [
        "line=2 on=exit:3,64-78 do=stop",
        "line=6 on=exit:137;class:platform do=restart count=0 max=3 within=3600",
        "line=13 on=hang host=2 do=stop text=CUDA error: x = 1",
        "line=19 do=restart max=5",
    ]
    assert list(failure_policy.settings(policy)) == [
        f"failure policy, rule 0{n}" for n in (1, 2, 3, 4)
    ]


def test_hosts_are_excluded_and_progress_is_asked_for() -> None:
    policy = failure_policy.parse(EXCLUDING, "p")
    assert failure_policy.settings(policy) == {
        "failure policy, rule 01": "line=3 on=worker times=3 do=exclude within=3600",
        "failure policy, rule 02": "line=9 on=straggler for=60 do=exclude",
        "failure policy, stop_without_progress": "3",
    }
    assert failure_policy.parse("stop_without_progress = 1", "p") == ((), 1, "")


@pytest.mark.parametrize("name", ["site", "my-site.rules", "site_rules:decide", "a.b:C.decide"])
def test_a_function_is_a_setting_of_the_job(name: str) -> None:
    policy = failure_policy.parse(f"function = '{name}'", "p")
    assert failure_policy.settings(policy) == {"failure policy, function": name}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "p: the file has no [[rule]]"),
        ("[[rules]]\ndo = 'stop'", "p:1: unknown key 'rules'; did you mean rule?"),
        ("[rule]\ndo = 'stop'", "p:1: each rule begins with [[rule]]"),
        (
            "[[rule]]\non = 'hang'",
            'p:1: rule 1: it has no key do: expected "restart", "exclude" or "stop"',
        ),
        (
            "[[rule]]\ndo = 'stp'",
            "p:2: rule 1: do is 'stp': expected "
            '"restart", "exclude" or "stop"; did you mean stop?',
        ),
        (
            "[[rule]]\ndo = 'halt'",
            'p:2: rule 1: do is \'halt\': expected "restart", "exclude" or "stop"',
        ),
        (
            "[[rule]]\ndo = 'stop'\ncuont = 1",
            "p:3: rule 1: unknown key 'cuont'; did you mean count?",
        ),
        (
            "[[rule]]\ndo = 'stop'\n[[rule]]\non = 'lostnode'\ndo = 'stop'",
            "p:4: rule 2: unknown condition 'lostnode'; did you mean lost-node?",
        ),
        (
            "[[rule]]\non = 'signal SIGKIL'\ndo = 'stop'",
            "p:2: rule 1: there is no signal 'SIGKIL'; did you mean SIGKILL?",
        ),
        (
            "[[rule]]\non = 'class platfrom'\ndo = 'stop'",
            "p:2: rule 1: unknown class 'platfrom'; did you mean platform?",
        ),
        (
            "[[rule]]\non = 'exit 0'\ndo = 'stop'",
            "p:2: rule 1: 'exit 0': expected exit codes from 1 to 255, as in exit 3,64-78",
        ),
        ("[[rule]]\non = 'exit'\ndo = 'stop'", "p:2: rule 1: the condition 'exit' needs a value"),
        (
            "[[rule]]\non = 'hang 3'\ndo = 'stop'",
            "p:2: rule 1: the condition 'hang 3' takes no value",
        ),
        (
            "[[rule]]\non = 3\ndo = 'stop'",
            "p:2: rule 1: on is 3: expected a text, or a list of texts",
        ),
        (
            "[[rule]]\ndo = 'restart'\nmax = 0",
            "p:3: rule 1: max is 0: expected a whole number from 1",
        ),
        (
            "[[rule]]\ndo = 'restart'\nmax = true",
            "p:3: rule 1: max is True: expected a whole number from 1",
        ),
        (
            "[[rule]]\ndo = 'restart'\nwithin = 3",
            "p:3: rule 1: within has no effect without max or host_count",
        ),
        (
            "[[rule]]\ndo = 'restart'\ncount = 1",
            "p:3: rule 1: count is 1: expected true or false",
        ),
        (
            "[[rule]]\ndo = 'stop'\ncount = true",
            'p:3: rule 1: count has no effect with do = "stop"',
        ),
        (
            "[[rule]]\ndo = 'restart'\nerror = \"a\\nb\"",
            "p:3: rule 1: error is 'a\\nb': expected a text of one line",
        ),
        (
            "[[rule]]\ndo = 'restart'\nerror = ''",
            "p:3: rule 1: error is '': expected a text of one line",
        ),
        (
            "stop_without_progress = 0",
            "p:1: stop_without_progress is 0: expected a whole number from 1",
        ),
        (
            "function = 3",
            "p:1: function is 3: expected the name of an entry point, or MODULE:NAME",
        ),
        (
            "\nfunction = 'a:b:c'",
            "p:2: function is 'a:b:c': expected the name of an entry point, or MODULE:NAME",
        ),
        ("functoin = 'a'", "p:1: unknown key 'functoin'; did you mean function?"),
        (
            "[[rule]]\non = 'straggler'\ndo = 'stop'\nfor = 3",
            'p:2: rule 1: on = "straggler" stands alone in its rule, with for = SECONDS and '
            'do = "exclude"',
        ),
        (
            "[[rule]]\non = 'hang'\ndo = 'stop'\nfor = 3",
            'p:4: rule 1: for has no effect without on = "straggler"',
        ),
    ],
)
def test_each_fault_is_one_sentence_with_its_line(lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as found:
        failure_policy.parse(lines, "p")
    assert str(found.value) == message


def test_a_file_that_is_not_toml_is_a_fault_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"p: .*line 2"):
        failure_policy.parse("[[rule]]\ndo = stop", "p")


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match="--failure-policy: cannot read /no/file: No such file"):
        failure_policy.read("/no/file", "--failure-policy")


@pytest.mark.parametrize("has_tomli", [True, False])
def test_without_tomllib_the_file_is_read_by_tomli(
    has_tomli: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Python 3.10."""
    given: list[str] = []

    def loads(content: str) -> dict[str, Any]:
        given.append(content)
        if content == "x":
            raise ArithmeticError("not TOML (at line 1)")
        return {"rule": [{"do": "stop"}]}

    tomli = SimpleNamespace(loads=loads, TOMLDecodeError=ArithmeticError)
    monkeypatch.setitem(sys.modules, "tomllib", None)  # an import fails
    monkeypatch.setitem(sys.modules, "tomli", tomli if has_tomli else None)
    content = "[[rule]]\ndo = 'stop'"
    if not has_tomli:
        with pytest.raises(ConfigError) as found:
            failure_policy.parse(content, "p")
        assert str(found.value) == (
            "--failure-policy needs the package tomli on Python 3.10: pip install tomli"
        )
        return
    assert failure_policy.parse(content, "p").rules[0] == "line=1 do=stop"
    with pytest.raises(ConfigError, match=r"^p: not TOML \(at line 1\)$"):
        failure_policy.parse("x", "p")
    assert given == [content, "x"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('on = "exit 3,64-78"', 'on = ["exit 3", "exit 64-78"]'),
        ('on = "exit 3,64-78"', 'on = ["exit 3,64-70", "exit 71-78"]'),
        ('on = "signal KILL,SEGV"', 'on = ["signal SIGKILL", "signal SIGSEGV"]'),
        ('on = "signal KILL"', 'on = "exit 137"'),
        ('on = "exit 5,6"', 'on = "exit 5-6"'),
        ('on = "exit 5,6,9"', 'on = ["exit 9", "exit 6,5", "exit 5-5"]'),
        ('on = ["hang", "exit 7"]', 'on = ["exit 7", "hang", "hang"]'),
        ('on = "any"', ""),
        ('on = "any"', 'on = ["any"]'),
        ("max = 3\nwithin = 60", "within = 60\nmax = 3"),
    ],
)
def test_two_spellings_are_one_rule(one: str, other: str) -> None:
    def texts(lines: str) -> list[str]:
        content = f"[[rule]]\n{lines}\ndo = 'restart'\n"
        return list(failure_policy.parse(content, "policy.toml").rules)

    assert texts(one) == texts(other)
