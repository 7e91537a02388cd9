"""The function of a failure policy: what it receives, and what it may return."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elastic import _C, policy
from elastic.agent.server.api import WorkerSpec
from elastic.agent.server.policy_function import PolicyFunction
from elastic.errors import ConfigError

STOP, RESTART = _C.FailureAction.STOP, _C.FailureAction.RESTART


class Native:
    """An agent that keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any, dict[str, Any]]] = []
        self._has_answer = threading.Condition()

    def advise(self, info: Any, local_rank: int, action: Any = None, **more: Any) -> None:
        with self._has_answer:
            self.answers.append((local_rank, action, more))
            self._has_answer.notify()

    def await_answers(self, count: int) -> list[tuple[int, Any, dict[str, Any]]]:
        with self._has_answer:
            assert self._has_answer.wait_for(lambda: len(self.answers) >= count, 60.0)
        return self.answers


def spec() -> WorkerSpec:
    return WorkerSpec(role="default", local_world_size=1, entrypoint="true", max_restarts=4)


def event(local_rank: int = 1) -> Any:
    evidence = SimpleNamespace(
        host="n7", error="E: x", output="E: x", failure_class="user worker", cause="exception"
    )
    failure = SimpleNamespace(
        local_rank=local_rank, rank=5, exit_code=3, message="exited with code 3", evidence=evidence
    )
    return SimpleNamespace(round=SimpleNamespace(round=2, restart_count=1), failure=failure)


def ask(call: Any, *local_ranks: int) -> list[tuple[int, Any, dict[str, Any]]]:
    native = Native()
    function = PolicyFunction("f", call, spec())
    for local_rank in local_ranks or (1,):
        function.ask(native, event(local_rank))  # type: ignore[arg-type]
    return native.await_answers(len(local_ranks) or 1)


def test_it_receives_what_the_node_knows() -> None:
    seen: list[policy.Failure] = []
    ask(seen.append)
    assert seen == [
        policy.Failure(
            run_id=spec().job_id(),
            round=2,
            rank=5,
            local_rank=1,
            host="n7",
            exit_code=3,
            message="exited with code 3",
            error="E: x",
            output="E: x",
            failure_class="user-worker",
            cause="exception",
            restart_count=1,
            max_restarts=4,
        )
    ]


@pytest.mark.parametrize(
    ("returned", "action", "counts", "reason"),
    [
        (None, None, None, ""),
        ("stop", STOP, None, ""),
        ("restart", RESTART, None, ""),
        ("exclude", _C.FailureAction.EXCLUDE, None, ""),
        (policy.Decision("restart", count=False, reason="a\n b"), RESTART, False, "a b"),
    ],
)
def test_its_answer_is_passed_on(returned: Any, action: Any, counts: Any, reason: str) -> None:
    more = {"counts": counts, "source": "the policy function f", "reason": reason}
    assert ask(lambda _: returned) == [(1, action, more)]


def leave(_: policy.Failure) -> None:
    sys.exit(3)


def divide(_: policy.Failure) -> int:
    return 1 // 0


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (divide, "ZeroDivisionError"),
        (leave, "RuntimeError: it called sys.exit(3)"),
        (
            lambda _: "wait",
            "ValueError: it returned 'wait': expected one of stop, restart, exclude",
        ),
        (lambda _: 3, "ValueError: it returned 3: expected one of stop, restart, exclude"),
        (lambda _: policy.Decision("stop", count=1), "ValueError: count is 1"),
    ],
)
def test_without_a_decision_the_job_decides(
    call: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        answers = ask(call, 0, 1)
    assert [(rank, action) for rank, action, _ in answers] == [(0, None), (1, None)]
    assert f"the policy function f failed, and the job continues without it: {why}" in caplog.text


def test_a_function_is_found_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site_rules.py").write_text("class Rules:\n    decide = print\nlimit = 3\n")
    (tmp_path / "broken_rules.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    PolicyFunction.named("site_rules:Rules.decide", spec())
    for name, why in {
        "site_rules:limit": "the policy function 'site_rules:limit' is a int",
        "site_rules:more": "cannot be loaded: AttributeError",
        "no_rules:decide": "cannot be loaded: ModuleNotFoundError: No module named 'no_rules'",
        "broken_rules:decide": "cannot be loaded: ZeroDivisionError: division by zero",
        "no_rules": "no installed distribution registers it in the entry points elastic.policy",
    }.items():
        with pytest.raises(ConfigError, match=why):
            PolicyFunction.named(name, spec())


def test_a_function_is_found_by_the_name_of_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules_of_site.py").write_text("def decide(failure):\n    return 'stop'\n")
    distribution = tmp_path / "rules_of_site-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Name: rules-of-site\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(
        "[elastic.policy]\nsite = rules_of_site:decide\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    native = Native()
    PolicyFunction.named("site", spec()).ask(native, event())  # type: ignore[arg-type]
    (answer,) = native.await_answers(1)
    assert answer[1] == STOP and answer[2]["source"] == "the policy function site"
