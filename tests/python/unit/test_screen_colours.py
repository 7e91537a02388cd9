"""Colours of the failure report and the hang screen."""

from __future__ import annotations

import os
import re

import pytest
from elastic.cli import messages

REPORT = """train.py failed: rank 1 (local rank 1, pid 7) exited with code 1
    time    2026-11-26 01:32:13.773 UTC
    error   ValueError: failed: x
    last lines of its stderr:
      | ValueError: failed: x
    round 1 was running 27.7 ms after the failure (detect 0 ms)
stopped by the launcher, not failed: rank 0"""
HANG = """elastic-launch: the job hangs: no rank has made progress for 60 s
  7 ranks (0-2,4-7) in all_reduce (train.py:88)
  rank 3 on node-b in __getitem__ (data.py:41): suspected
stack of rank 3, the most recent call first:
    File "/app/data.py", line 41 in __getitem__"""


@pytest.mark.parametrize("text", [REPORT, HANG])
def test_colours_change_no_letter(text: str) -> None:
    painted = messages.painted(text)
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == text
    assert painted.startswith(messages.RED)
    assert painted.count(messages.END) == len(re.findall(r"\x1b\[[0-9;]+[1-9]m|\x1b\[2m", painted))


def test_the_suspect_stands_out() -> None:
    painted = messages.painted(HANG).splitlines()
    assert [n for n, line in enumerate(painted) if line.startswith(messages.YELLOW)] == [2]
    assert painted[4] == HANG.splitlines()[4], "a line of a stack is no label"


def test_other_screens_have_no_headline() -> None:
    text = "run: stopped at step 5 on every rank\n    run     job7"
    assert messages.RED not in messages.painted(text)


def test_colours_need_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    assert messages.shows_colours({"TERM": "xterm", "NO_COLOR": ""})
    assert not messages.shows_colours({"TERM": "dumb"})
    assert not messages.shows_colours({"TERM": "xterm", "NO_COLOR": "1"})
    monkeypatch.setattr(os, "isatty", lambda _: False)
    assert not messages.shows_colours({"TERM": "xterm"})
