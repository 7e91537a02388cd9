"""What ``elastic-launch status`` shows of a snapshot."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from elastic.cli import status, status_rich, status_view

SNAPSHOT: dict[str, Any] = {
    "job": "job7", "time": 1e9, "phase": "running", "description": "round 1 runs on 1 node",
    "coordinator": {"node": None, "address": "unix:/tmp/x.sock", "term": 1, "voters": []},
    "settings": {"min_nodes": 1, "max_nodes": 1, "max_restarts": 3},
    "round": 1, "nodes_in_round": 1, "world_size": 8, "master_addr": "127.0.0.1",
    "master_port": 5, "restarts": 1, "membership_changes": 0, "waiting_nodes": 0, "spare_nodes": 0,
    "began": 1e9 - 60, "running_seconds": 59.0, "goodput": 0.983, "stragglers": [], "hang": None,
    "saved": None,
    "stall": None,
    "mismatch": None,
    "excluded": [],
    "findings": [],
    "progress": {"step": 834, "slowest_step": 833, "ranks": 8, "step_seconds": 0.25},
    "result": None,
    "rounds": [
        {"round": 0, "ended": 1e9 - 30, "cause": "worker_failed", "reason": "rank 3 exited with 1",
         "rule": "rule 1 (line 2) of the failure policy",
         "phases": {"detect": 0.002, "stop": 0.1, "rendezvous": 0.001, "first_step": None}},
        {"round": 1, "cause": None},
    ],
    "nodes": [
        {"rank": 0, "name": "n0_7", "address": "127.0.0.1", "state": "working", "connected": True,
         "last_beat_seconds": 0.0,
         "workers": [{"rank": i, "pid": 100 + i, "state": "running"} for i in range(8)]},
    ],
}  # fmt: skip
HANG = {"idle_seconds": 12.0, "step": 5, "rank": 3, "place": "in read (hang.py:26)"}


def changed(**more: Any) -> dict[str, Any]:
    return copy.deepcopy(SNAPSHOT) | more


def test_the_text_has_progress_and_counts_many_workers() -> None:
    shown = status_view.text(SNAPSHOT)
    assert "progress     step 834, slowest rank at 833, 4.00 steps/s, 250 ms per step" in shown
    assert "coordinator  in the job's only agent at unix:/tmp/x.sock, term 1" in shown
    assert "round        1: 1 node, world size 8" in shown
    assert "8 running\n" in shown
    assert "worker failed" in shown and "100 ms" in shown
    assert "rank 3 exited with 1; rule 1\n" in shown
    assert max(map(len, shown.splitlines())) <= 100
    hung = status_view.text(changed(hang=HANG))
    assert "job job7: HUNG" in hung
    assert "no rank has made progress for 12 s, since step 5; suspect: rank 3, in read" in hung
    assert "slowest rank at 833\n" in hung, "without the pace, which is of before the hang"
    text = {"message": "rank 3 has not entered all_reduce #4", "idle_seconds": 40.0, "rank": 3}
    stalled = status_view.text(changed(stall=text | {"place": "in read (hang.py:26)"}))
    assert "stalled      rank 3 has not entered all_reduce #4 (for 40 s); it is in read" in stalled
    assert "(for 40 s)\n" in status_view.text(changed(stall=text | {"place": None}))


@pytest.mark.parametrize(
    ("step_seconds", "text"),
    [
        (None, "step 3"),
        (90.0, "step 3, 0.01 steps/s, 1 min 30 s per step"),
        (0.0321, "step 3, 31.2 steps/s, 32.1 ms per step"),
        (0.000512, "step 3, 1953 steps/s, 0.512 ms per step"),
    ],
)
def test_the_pace_has_three_digits(step_seconds: float | None, text: str) -> None:
    progress = {"step": 3, "slowest_step": 3, "ranks": 2, "step_seconds": step_seconds}
    assert status_view.progress_text(progress) == text


def test_few_workers_are_shown_with_their_pids_and_failed_ones_always() -> None:
    workers = [{"rank": i, "pid": 100 + i, "state": "running"} for i in range(8)]
    assert status_view.workers_text(workers[:2]) == "2 running (0:100 1:101)"
    workers[3] |= {"state": "failed", "exit_code": 137}
    assert status_view.workers_text(workers) == "7 running, 1 failed (3:103 exit code 137)"
    assert status_view.workers_text([]) == "-"


def test_the_facts_agree_with_the_nodes() -> None:
    forming = changed(phase="forming", settings={"min_nodes": 2, "max_nodes": 2, "max_restarts": 3})
    forming["nodes"][0]["state"] = "waiting"
    assert "nodes        2 wanted, 1 joined\n" in status_view.text(forming)
    once = changed(membership_changes=1, began=1e9 - 14, running_seconds=0.6, goodput=0.043)
    shown = status_view.text(once)
    assert "restarts     1 of 3 restarts used, 1 membership change\n" in shown
    assert "running      600 ms of 14 s since " in shown
    assert "nodes        1 wanted, 0 waiting, 0 spare\n" in shown


def test_the_snapshot_that_every_rank_has_is_shown_with_its_age() -> None:
    assert "in memory" not in status_view.text(changed())
    saved = {"step": 830, "age_seconds": 3.24, "copied_step": None, "memory": None}
    shown = status_view.text(changed(saved=saved))
    assert "in memory    step 830 of every rank, 3.2 s old; " in shown
    shown = status_view.text(changed(saved=saved | {"copied_step": 820}))
    assert "3.2 s old; step 820 on another node, too\n" in shown


def test_the_memory_of_snapshots_is_shown_beside_the_limit_of_the_node_with_the_least() -> None:
    memory = {
        "snapshot_bytes": 3 << 30, "copy_bytes": 5 << 19, "node": "trainer1_77",
        "needed_bytes": 4 << 30, "limit_bytes": 6 << 30,
    }  # fmt: skip
    saved = {"step": 830, "age_seconds": 3.24, "copied_step": None, "memory": memory}
    shown = status_view.text(changed(saved=saved))
    text = "memory       snapshots 3.0 GiB, copies 2.5 MiB; trainer1_77 needs up to 4.0 GiB"
    assert f"{text} and may use 6.0 GiB\n" in shown
    memory["limit_bytes"] = None
    assert "memory       snapshots 3.0 GiB, copies 2.5 MiB\n" in status_view.text(
        changed(saved=saved)
    )


def test_excluded_hosts_are_shown_until_when_and_why() -> None:
    assert "excluded" not in status_view.text(changed())
    until = 1e9 + 3600
    once = {"host": "n7", "until": until, "reason": "an operator: fan 3", "times": 1}
    shown = status_view.text(changed(excluded=[once, once | {"host": "n8", "times": 3}]))
    at = status_view.clock(until)
    assert f"  excluded     n7 until {at}: an operator: fan 3\n" in shown
    assert f"  excluded     n8 until {at}, 3 times so far: an operator: fan 3\n" in shown


def test_what_was_found_on_a_host_is_shown_once() -> None:
    why = {"host": "n7", "until": 1e9 + 3600, "reason": "check gpu: bad: GPU 3 is lost", "times": 1}
    found = [
        {"host": "n7", "time": 1e9 - 60, "text": "check gpu: bad: GPU 3 is lost"},
        {"host": "n7", "time": 1e9 - 90, "text": "check ib: unknown: no driver"},
        {"host": "n8", "time": 1e9 - 30, "text": "check gpu: unknown: no driver"},
    ]
    shown = status_view.text(changed(excluded=[why], findings=found))
    first, second = status_view.clock(1e9 - 90), status_view.clock(1e9 - 30)
    assert f"  found        n7 at {first}: check ib: unknown: no driver\n" in shown
    assert f"  found        n8 at {second}: check gpu: unknown: no driver\n" in shown
    assert shown.count("GPU 3 is lost") == 1


def test_a_job_without_steps_has_no_goodput() -> None:
    assert ", goodput 98.3 %\n" in status_view.text(changed())
    shown = status_view.text(changed(progress=None))
    assert "running      59 s of 1 min since " in shown
    assert ", no steps reported\n" in shown
    assert "goodput" not in shown


def test_workers_of_a_job_that_has_ended_are_being_stopped() -> None:
    result = {"outcome": "failed", "message": "n1 was lost", "exit_code": 78}
    shown = status_view.text(changed(result=result))
    assert "8 being stopped\n" in shown
    assert "result       n1 was lost (exit code 78)\n" in shown


def test_a_followed_job_is_a_line_for_each_change() -> None:
    written: list[str] = []
    lines = status.Lines(written.append)
    lines.show(SNAPSHOT)
    assert written.pop() == status_view.text(SNAPSHOT)
    faster = SNAPSHOT["progress"] | {"step": 840}
    lines.show(changed(time=1e9 + 2, running_seconds=61.0, progress=faster))
    assert written == [], "new steps alone are shown at most every ten seconds"
    lines.show(changed(time=1e9 + 12, progress=faster))
    assert written.pop().endswith("step 840, slowest rank at 833, 4.00 steps/s, 250 ms per step")
    assert written == []
    ended = SNAPSHOT["rounds"][0] | {"round": 1, "cause": "node_lost", "reason": "n1 is lost"}
    rounds = [SNAPSHOT["rounds"][0], ended, {"round": 2, "cause": None}]
    lines.show(changed(time=1e9 + 13, round=2, rounds=rounds, hang=HANG, progress=None))
    incident, state = written
    assert incident.endswith("round 1 ended, node lost: n1 is lost")
    assert "HUNG; round 2 on 1 node, world size 8; hung: no rank has made progress" in state
    lines.show(changed(time=1e9 + 14, round=2, rounds=rounds, hang=HANG, progress=None))
    assert len(written) == 2


def test_a_terminal_gets_colour_and_the_same_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    console = pytest.importorskip("rich.console")
    monkeypatch.delenv("NO_COLOR", raising=False)
    many = [SNAPSHOT["nodes"][0] | {"rank": i, "name": f"n{i}_7"} for i in range(200)]
    many[150] |= {"connected": False}
    for environ, has_colour in (
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ):
        out = io.StringIO()
        screen = console.Console(file=out, force_terminal=True, width=120, _environ=environ)
        screen.print(status_rich.render(changed(hang=HANG, nodes=many), height=24))
        shown = out.getvalue()
        assert ("\x1b[1;31m" in shown) == has_colour  # bold red
        assert "HUNG" in shown and "834" in shown and "rank 3 exited with 1" in shown
        assert shown.count("\n") <= 24
        assert "n150_7" in shown, "a node that is not as usual is shown first"
        assert "nodes more" in shown


def test_no_terminal_needs_no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert status_rich.open_console({}) is None
