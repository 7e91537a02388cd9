"""Which of the messages about a wait an agent logs, and when."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from elastic import _C
from elastic.agent.server import WorkerState
from elastic.agent.server.progress_notes import DELAY_S, ProgressNotes, StepWatch, restart_line
from elastic.constants import NOTICE


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Notes(ProgressNotes):
    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        super().__init__(lambda level, text: self.lines.append((level, text)), "host:1")

    def say(self, text: str, state: WorkerState = WorkerState.INIT, **more: Any) -> None:
        event: Any = SimpleNamespace(message=text, deadline=None, hosts_coordinator=False)
        vars(event).update(more)
        self.note(event, state)


@pytest.mark.usefixtures("clock")
def test_a_warning_is_no_wait() -> None:
    notes = Notes()
    notes.say("warning: set a token", hosts_coordinator=True)
    assert notes.lines == [(logging.WARNING, "warning: set a token")]
    assert notes.delay() is None


def test_a_wait_is_logged_once_it_has_lasted(clock: Clock) -> None:
    notes = Notes()
    assert notes.delay() is None
    notes.say("1 of 3 nodes", hosts_coordinator=True)
    clock.now += DELAY_S / 2
    notes.say("2 of 3 nodes", hosts_coordinator=True)
    notes.flush()
    assert (notes.delay(), notes.lines) == (DELAY_S / 2, [])
    clock.now += DELAY_S / 2
    notes.flush()
    notes.say("2 of 3 nodes", hosts_coordinator=True)
    assert notes.lines == [
        (NOTICE, "waiting at host:1 as host: 2 of 3 nodes"),
        (logging.DEBUG, "waiting at host:1 as host: 2 of 3 nodes"),
    ]


def test_a_limit_does_not_replace_what_it_limits(clock: Clock) -> None:
    notes = Notes()
    notes.say("host:1 is silent; the workers run on")
    notes.say("host:1 cannot be reached, gives up", deadline=clock.now + 100)
    assert notes.lines == [(NOTICE, "host:1 is silent; the workers run on")]
    clock.now += DELAY_S
    notes.flush()
    assert len(notes.lines) == 2


def test_the_reason_of_a_restart_is_logged_once(clock: Clock) -> None:
    message = "rank 1 exited with code 1; twice; restarting, 1 of 3 restarts left"
    notes = Notes()
    assert restart_line(message, notes.drop()) == message
    notes.say("round 1 has ended (rank 1 exited with code 1; twice): the next one starts")
    clock.now += DELAY_S
    notes.flush()
    assert restart_line(message, notes.drop()) == "restarting, 1 of 3 restarts left"
    assert notes.drop() == "", "the line belongs to one wait"
    notes.say("1 of 3 nodes")
    clock.now += DELAY_S
    notes.flush()
    assert restart_line(message, notes.drop()) == message


def test_a_restart_repeats_no_reason_of_the_stop_before_it() -> None:
    message = "rank 1 exited with code 1; restarting, 1 of 3 restarts left"
    stopped = "rank 1 exited with code 1; stopping the other workers, which have 30 s"
    assert restart_line(message, "", stopped) == "restarting, 1 of 3 restarts left"
    assert restart_line(message, "", "rank 0 exited with code 1; stopping") == message
    found = "rank 1 raised ValueError: x; restarting"
    assert restart_line(found, "", stopped) == found, "more is known than at the stop"


def test_a_limit_without_any_step_is_noted_once(clock: Clock) -> None:
    kinds = _C.AgentEvent.Kind
    watch = StepWatch(60)
    assert watch.delay(None) is None
    watch.observe(kinds.WORKERS_RUNNING)
    assert watch.delay(None) == 60
    assert watch.delay(5) == 5
    assert not watch.sentence()
    clock.now += 60
    assert watch.sentence().startswith("no rank of this node has reported a step in 1 min: ")
    watch.observe(kinds.WORKERS_RUNNING)
    assert (watch.delay(None), watch.sentence()) == (None, "")


def test_a_short_limit_is_not_noted_while_the_script_begins(clock: Clock) -> None:
    watch = StepWatch(5)
    watch.observe(_C.AgentEvent.Kind.WORKERS_RUNNING)
    clock.now += 59
    assert not watch.sentence()
    clock.now += 1
    assert watch.sentence().startswith("no rank of this node has reported a step in 1 min: ")


def test_a_limit_is_not_noted_when_steps_are_reported(clock: Clock) -> None:
    kinds = _C.AgentEvent.Kind
    for end in (kinds.FIRST_STEP, kinds.STOPPING, kinds.FINISHED):
        watch = StepWatch(60)
        watch.observe(kinds.WORKERS_RUNNING)
        watch.observe(end)
        clock.now += 60
        assert (watch.delay(None), watch.sentence()) == (None, "")
    unlimited = StepWatch(0)
    unlimited.observe(kinds.WORKERS_RUNNING)
    assert unlimited.delay(None) is None


def test_a_wait_that_is_over_at_once_is_a_detail(clock: Clock) -> None:
    notes = Notes()
    notes.say("keeping the store", WorkerState.SUCCEEDED)
    notes.drop()
    clock.now += 10
    notes.flush()
    assert notes.lines == [(logging.DEBUG, "keeping the store")]
    notes.say("keeping the store", WorkerState.SUCCEEDED)  # news again: no line had it
    assert notes.delay() == DELAY_S


def test_what_concerns_running_workers_is_a_warning_at_once(clock: Clock) -> None:
    notes = Notes()
    notes.say("the coordinator is lost", WorkerState.HEALTHY)
    assert notes.lines == [(logging.WARNING, "the coordinator is lost")]
