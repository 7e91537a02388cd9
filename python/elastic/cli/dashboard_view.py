"""A snapshot of a job for the page of the dashboard, which only lays it out.

The words are those of ``elastic-launch status``. Their times are numbers (``status_view.Words``): a
browser shows them in the time zone of its user.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elastic.cli import status_view
from elastic.cli.status_view import Words, short
from elastic.text import duration, plural

SENTENCES_MAX = 3  # about stragglers
ROUNDS_KEPT = 64  # by the coordinator

Pairs = list[tuple[str, Words]]  # titles and texts


def page(snapshot: dict[str, Any]) -> dict[str, Any]:
    """All texts of the page, and the times of its charts, as JSON can have them.

    ``nodes`` are in the order of the snapshot's; ``incidents`` begin with the latest. ``workers``:
    by rank, those that are not what their ``state`` in the snapshot says, or of which there is
    something to say.
    """
    return {
        "state": _state(snapshot),
        "headline": status_view.headline(snapshot).words,
        "warnings": _warnings(snapshot),
        "failure": _failure(snapshot),
        "summary": _summary(snapshot),
        "course": _course(snapshot),
        "incidents": [
            _incident(snapshot, one) for one in reversed(status_view.ended_rounds(snapshot))
        ],
        "nodes": [
            {
                "state": status_view.node_state(snapshot, one),
                "cells": status_view.node_cells(snapshot, one),
            }
            for one in snapshot["nodes"]
        ],
        "workers": dict(_unusual_workers(snapshot)),
    }


def _state(snapshot: dict[str, Any]) -> str:
    return status_view.state_of(snapshot)[0].lower()


def _warnings(snapshot: dict[str, Any]) -> list[Words]:
    shown: list[Words] = []
    late = 0
    for one in status_view.warnings(snapshot):
        late += one.label == "straggling"
        if one.label != "straggling" or late <= SENTENCES_MAX:
            shown.append((f"{one.label}: ", *status_view.parts(one.words)))
    if late > SENTENCES_MAX:
        shown.append(f"straggling: {plural(late - SENTENCES_MAX, 'more rank')}")
    return shown


def _summary(snapshot: dict[str, Any]) -> Pairs:
    pairs: Pairs = []
    if (progress := status_view.progress_of(snapshot)) is not None:
        seconds = progress["step_seconds"]
        pairs += [
            ("Step", status_view.step_text(progress)),
            ("Speed", status_view.speed_text(seconds)),
            ("One step", status_view.pace_text(seconds)),
        ]
    number = snapshot["round"]
    return [
        *pairs,
        ("Goodput", status_view.goodput_text(snapshot)),
        ("Running", status_view.running_text(snapshot)),
        ("Round", "-" if number is None else str(number)),
        ("Size", status_view.size_text(snapshot["nodes_in_round"], snapshot["world_size"])),
        ("Restarts", status_view.restarts_text(snapshot, snapshot["restarts"])),
        ("Membership changes", str(snapshot["membership_changes"])),
        ("Nodes", status_view.nodes_text(snapshot)),
        ("Coordinator", status_view.coordinator_text(snapshot["coordinator"])),
    ]


def _failure(snapshot: dict[str, Any]) -> dict[str, Any] | None:
    """The report of the failure that ended the job; None: it has not ended, or did not fail."""
    result = snapshot["result"]
    if result is None or result["outcome"] != "failed":
        return None
    known = result["evidence"] or {}
    pairs: Pairs = [*_whose(result), ("Host", known.get("host") or "")]
    if known.get("time"):
        pairs.append(("Time", (known["time"],)))
    pairs.append(("Exit code", _exit_text(result["exit_code"])))
    if known:
        pairs.append(("Class", f"{known['class']} ({known['cause']})"))
    pairs += [("Error", known.get("error") or ""), ("Hint", known.get("hint") or "")]
    output = known.get("output") or ""
    is_note = not output and result["rank"] is not None
    return {
        "facts": [*_known(pairs), *_known([("Lost", ", ".join(result["lost"]))])],
        "output": output,
        "note": "No lines of its stderr were captured." if is_note else "",
    }


def _whose(failure: dict[str, Any]) -> Pairs:
    rank = failure["rank"]
    return [("Rank", "" if rank is None else str(rank)), ("Node", failure["node"] or "")]


def _known(pairs: Pairs) -> Pairs:
    return [pair for pair in pairs if pair[1]]


def _exit_text(code: int | None) -> str:
    if code is None:
        return ""
    return f"{code} (signal {code - 128})" if 128 < code <= 128 + 64 else str(code)


def _incident(snapshot: dict[str, Any], ended: dict[str, Any]) -> dict[str, Any]:
    """The row of a round that ended, and the report of why. Observers get no output of workers."""
    following = (one for one in snapshot["rounds"] if one["round"] > ended["round"])
    after = next(following, None)
    ran = ended["formed"] if ended["first_step"] is None else ended["first_step"]
    is_known = ran is not None and ended["ended"] is not None
    pairs: Pairs = [
        *_whose(ended),
        ("Exit code", _exit_text(ended["exit_code"])),
        ("Trained", duration(round(ended["ended"] - ran, 1)) if is_known else ""),
        ("Size", status_view.size_text(ended["nodes"], ended["world_size"])),
    ]
    if after is not None:
        pairs += [
            ("Next size", status_view.size_text(after["nodes"], after["world_size"])),
            ("Restarts", status_view.restarts_text(snapshot, after["restarts"])),
        ]
    note = ""
    if ended["rank"] is not None:
        where = ended["node"] or "its node"
        note = (
            "The output of the worker is not sent to observers: see its log, or the console of "
            f"{where}."
        )
    return {
        "round": ended["round"],
        "cells": [
            str(ended["round"]),
            "-" if ended["ended"] is None else (ended["ended"],),
            status_view.cause_text(ended),
            short(_without_training(ended)),
            *map(short, status_view.phases_of(ended)),
        ],
        "reason": status_view.reason_text(ended),
        "facts": _known(pairs),
        "note": note,
    }


def _without_training(ended: dict[str, Any]) -> float | None:
    """Seconds until the next round made its first step, or was formed; None: there is none yet."""
    phases = ended["phases"]
    return None if phases["rendezvous"] is None else sum(filter(None, phases.values()))


def _course(snapshot: dict[str, Any]) -> dict[str, Any] | None:
    """The rounds that were formed, from ``begin`` to ``ends``; None: there is none.

    ``segments``: one for each round, then one for each time in which nothing was trained: between
    two rounds, before the first step of a round that reports steps, and while the job hangs.
    ``trained``: the parts in which a round trained: from its first step, if the job reports steps.
    ``notes``: about the line of the goodput, and why these are not the whole.
    """
    rounds = [one for one in snapshot["rounds"] if one["formed"] is not None]
    if not rounds:
        return None
    result, hang = snapshot["result"], snapshot["hang"]
    begin, ends = rounds[0]["formed"], snapshot["time"]
    if result is not None and rounds[-1]["ended"] is not None:
        ends = rounds[-1]["ended"]
    hung_since = None
    if hang is not None and result is None:
        hung_since = snapshot["time"] - hang["idle_seconds"]
    reports_steps = any(one["first_step"] is not None for one in rounds)
    segments, lost, trained = [], [], []
    for one, after in zip(rounds, [*rounds[1:], None], strict=True):
        formed, is_open = one["formed"], one["ended"] is None
        until = ends if is_open else one["ended"]
        name = (f"round {one['round']}, ", formed, f", {_took(formed, until)}")
        segments.append(_segment("round", formed, until, name))
        begun = formed
        if reports_steps:
            begun = until if one["first_step"] is None else one["first_step"]
        if begun > formed:
            title = f"{_took(formed, begun)} until the first step"
            lost.append(_segment("start", formed, begun, title))
        if not is_open and (after is not None or result is None):
            restarted = ends if after is None else after["formed"]
            title = f"{_took(until, restarted)}: {one['reason']}"
            lost.append(_segment("gap", until, restarted, title))
        if is_open and hung_since is not None:
            until = min(until, hung_since)
        trained.append((begun, max(begun, until)))
    if result is not None and result["outcome"] not in ("succeeded", "stopped"):
        lost.append(_segment("gap end", ends, ends, result["message"]))
    elif hung_since is not None:
        lost.append(_segment("gap", hung_since, ends, status_view.headline(snapshot).words))
    notes: list[Words] = []
    if snapshot["goodput"] is not None:
        now = status_view.percent(snapshot["goodput"])
        notes.append(("line: goodput since ", snapshot["began"], f", now {now}"))
    elsewhere = snapshot["running_seconds"] - sum(until - begun for begun, until in trained)
    if len(snapshot["rounds"]) >= ROUNDS_KEPT:
        notes.append(f"the coordinator keeps the latest {ROUNDS_KEPT} rounds")
    elif elsewhere < -1:
        hangs = duration(round(-elsewhere, 1))
        notes.append(f"hangs that ended, {hangs} in all, are not in the bars")
    return {
        "begin": begin,
        "ends": ends,
        "segments": segments + lost,  # the lost time above the rounds
        "trained": trained,
        "notes": notes,
    }


def _took(begin: float, end: float) -> str:
    return duration(round(max(end - begin, 0.0), 1))


def _segment(kind: str, begin: float, end: float, title: Words) -> dict[str, Any]:
    return {"kind": kind, "from": begin, "until": end, "title": title}


def _unusual_workers(snapshot: dict[str, Any]) -> Iterator[tuple[int, dict[str, str]]]:
    is_over = snapshot["result"] is not None
    late = {one["rank"]: status_view.lag_text(one) for one in snapshot["stragglers"]}
    suspect = snapshot["hang"]["rank"] if snapshot["hang"] and not is_over else None
    for node in snapshot["nodes"]:
        for worker in node["workers"] or ():
            rank = worker["rank"]
            state = status_view.worker_state(worker, is_over=is_over)
            note = status_view.exit_text(worker)
            if state != status_view.STOPPED and rank == suspect:
                state = "hung"
            elif state != status_view.STOPPED and rank in late:
                state, note = "straggling", late[rank]
            if note or state != worker["state"]:
                yield rank, {"state": state, "note": note}
