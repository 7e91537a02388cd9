"""What the page of ``elastic-launch dashboard`` shows of a snapshot: the words of ``status``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from elastic.cli import dashboard_view, status_view

from support.snapshots import TIME, snapshot

HANG = {"idle_seconds": 95.0, "step": None, "rank": 1, "place": None}
FAILED: dict[str, Any] = {
    "outcome": "failed", "message": "rank 3 exited with 1", "exit_code": 1, "rank": 3,
    "node": "n0", "lost": ["n1"], "evidence": None,
}  # fmt: skip


def lagging(count: int) -> list[dict[str, Any]]:
    return [{"rank": rank, "node": "n0", "step": 7, "idle_seconds": 12.2} for rank in range(count)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"hang": HANG},
        {"hang": HANG | {"step": 5, "place": "in read (hang.py:26)"}},
        {"stall": {"message": "rank 1 has not entered", "idle_seconds": 40.0, "place": "in f"}},
        {"mismatch": "rank 1 called all_reduce with 8 bytes"},
        {"stragglers": lagging(1)},
        {"findings": [{"host": "n8", "text": "check gpu: bad", "time": TIME}]},
        {"excluded": [{"host": "n7", "until": TIME, "reason": "fan 3", "times": 2}]},
        {"progress": None},
        {"result": FAILED, "phase": "closed"},
        {"settings": {"min_nodes": 2, "max_nodes": 2, "max_restarts": 0}},
    ],
)
def test_the_page_and_the_status_have_the_same_words(more: dict[str, Any]) -> None:
    job = snapshot(16, **more)
    text = status_view.text(job)
    page = json.loads(json.dumps(dashboard_view.page(job)))
    assert f"job large: {page['state']} at" in text.replace("HUNG", "hung")
    assert f"  {status_view.read(page['headline'])}\n" in text
    for words in page["warnings"]:
        label, _, rest = status_view.read(words).partition(": ")
        assert f"  {label:<12} {rest}\n" in text
    shown = dict(page["summary"])
    for title in ("Goodput", "Size", "Restarts", "Nodes", "Coordinator"):
        assert shown[title] in text, title
    for node in page["nodes"]:
        assert "  ".join(node["cells"][-3:]) in text
    (incident,) = page["incidents"]
    for words in (*incident["cells"][:3], *incident["cells"][4:], incident["reason"]):
        assert status_view.read(words) in text


def test_a_time_is_left_to_the_reader() -> None:
    words = dashboard_view.page(
        snapshot(8, excluded=[{"host": "n7", "until": TIME, "reason": "fan 3", "times": 1}])
    )["warnings"]
    assert words == [("excluded: ", "n7 until ", TIME, ": fan 3")]


def test_only_workers_of_which_there_is_something_to_say_are_listed() -> None:
    job = snapshot(16, stragglers=lagging(5))
    job["nodes"][1]["workers"][0] |= {"state": "failed", "exit_code": 137}
    page = dashboard_view.page(job)
    note = "at step 7, no progress for 12.2 s"
    assert page["workers"] == {rank: {"state": "straggling", "note": note} for rank in range(5)} | {
        8: {"state": "failed", "note": "exit code 137"}
    }
    assert len(page["warnings"]) == dashboard_view.SENTENCES_MAX + 1
    assert page["warnings"][-1] == "straggling: 2 more ranks"
    assert dashboard_view.page(snapshot(16, hang=HANG))["workers"][1]["state"] == "hung"
    over = dashboard_view.page(snapshot(16, result=FAILED))
    assert {one["state"] for one in over["workers"].values()} == {status_view.STOPPED}
    assert {one["state"] for one in over["nodes"]} == {status_view.STOPPED}


def test_the_time_line_has_the_times_without_training() -> None:
    assert dashboard_view.page(snapshot(8, rounds=[]))["course"] is None
    course = dashboard_view.page(snapshot(8))["course"]
    kinds = [(one["kind"], status_view.read(one["title"])) for one in course["segments"]]
    assert [kind for kind, _ in kinds] == ["round", "round", "start", "gap", "start"]
    assert kinds[2:] == [
        ("start", "50 s until the first step"),
        ("gap", "50 s: rank 1 on gpu-node-0000_700 exited with code 1"),
        ("start", "50 s until the first step"),
    ]
    assert course["trained"] == [(TIME - 7150, TIME - 3700), (TIME - 3600, TIME)]
    hung = dashboard_view.page(snapshot(8, hang=HANG))["course"]
    assert hung["trained"][-1] == (TIME - 3600, TIME - 95)
    assert hung["segments"][-1]["title"] == "no rank has made progress for 1 min 35 s; " + (
        "suspect: rank 1"
    )
    over = dashboard_view.page(snapshot(8, result=FAILED))["course"]
    assert (over["segments"][-1]["kind"], over["segments"][-1]["title"]) == (
        "gap end",
        "rank 3 exited with 1",
    )


def test_the_report_of_a_failure_has_what_is_known() -> None:
    failure = dashboard_view.page(snapshot(8, result=FAILED))["failure"]
    assert failure["facts"] == [("Rank", "3"), ("Node", "n0"), ("Exit code", "1"), ("Lost", "n1")]
    assert failure["note"] == "No lines of its stderr were captured."
    closed = snapshot(8, result=FAILED | {"outcome": "closed"})
    assert dashboard_view.page(closed)["failure"] is None
