"""How ``status --follow``, ``drain`` and ``stacks`` end, with a job that is not real."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from elastic import observe
from elastic.cli import drain, stacks, status
from elastic.errors import RendezvousUnavailable

OPEN: dict[str, Any] = {
    "job": "two", "result": None, "progress": None, "nodes": [], "stragglers": [], "hang": None,
    "saved": None,
    "stall": None,
    "mismatch": None,
    "excluded": [],
    "findings": [],
    "coordinator": {"address": "a:1", "voters": ["b:2"]},
}  # fmt: skip


class FakeJob:
    """Answers with what ``answers`` has; an exception is raised, and then by every connection."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.connections = 0

    def connect(self, endpoint: str, *_: object, **__: object) -> Any:
        self.connections += 1
        self.endpoint = endpoint
        return self._session()

    @contextmanager
    def _session(self) -> Iterator[FakeJob]:
        yield self

    def _answer(self, _: float | None = None) -> Any:
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    next = first = next_drain = next_stacks = _answer


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any], bool], FakeJob]:
    """A job with these answers, which this host lists until its coordinator is lost, or longer."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))

    def make(answers: list[Any], stays_listed: bool = True) -> FakeJob:
        made = FakeJob(answers)
        listed = [True]  # when it is asked for the first time
        monkeypatch.setattr(observe, "connect", made.connect)
        monkeypatch.setattr(
            observe, "is_local", lambda run_id: listed.pop() if listed else stays_listed
        )
        return made

    return make


LOST = RendezvousUnavailable("cannot connect to a:1: Connection refused")


@pytest.mark.parametrize(("stays_listed", "limit"), [(True, "1 min"), (False, "10 s")])
def test_following_ends_if_no_coordinator_comes_back(
    job: Any, stays_listed: bool, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = job([OPEN, LOST], stays_listed)
    assert status.run(["a:1", "--follow", "--json"]) == 75
    trying, gave_up = capsys.readouterr().err.splitlines()
    assert f"Connection refused; trying again for {limit}" in trying
    assert gave_up.endswith(f"gave up after {limit}")
    assert ("no agent of two is left on this host" in gave_up) != stays_listed
    assert made.connections > 5


def test_following_goes_on_with_a_coordinator_that_is_back(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = job([OPEN, LOST, OPEN | {"result": {"outcome": "failed"}}])
    assert status.run(["a:1", "--follow", "--json"]) == 0
    assert made.connections == 2
    assert made.endpoint == "a:1,b:2"
    assert '"outcome": "failed"' in capsys.readouterr().out


def test_an_interrupted_drain_stays_in_force(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    job([OPEN | {"progress": {"step": 1}}, None, KeyboardInterrupt()])
    assert drain.run(["a:1", "--deadline=30"]) == 130
    assert "interrupted; the request stays in force until " in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_drain_warns_about_a_job_without_steps(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job([OPEN, (True, "every rank stops at step 3")])
    assert drain.run(["a:1", "--deadline=30"]) == 0
    assert "warning: no rank has reported a step" in capsys.readouterr().err
    job([OPEN | {"progress": {"step": 1}}, (True, "every rank stops at step 3")])
    assert drain.run(["a:1", "--deadline=30"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "answer", "code"),
    [
        ([], "the job has ended", 1),
        ([], "stopped without an agreed step (x): no rank has reported a step by the deadline", 3),
        (["--node=n"], "node n is not to leave at an agreed step", 1),
    ],
)
def test_the_exit_code_of_a_drain_says_whether_the_job_was_stopped(
    job: Any, words: list[str], answer: str, code: int
) -> None:
    job([OPEN, (False, answer)])
    assert drain.run(["a:1", *words]) == code


def test_stacks_say_how_to_get_python_stacks(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job(["rank 0 waiting in the kernel (do_nanosleep)"])
    assert stacks.run(["a:1"]) == 0
    assert "no Python stacks: import elastic.worker in the script" in capsys.readouterr().err
    job(['rank 0 in read (a.py:1)\n    File "a.py", line 1 in read'])
    assert stacks.run(["a:1"]) == 0
    assert capsys.readouterr().err == ""
