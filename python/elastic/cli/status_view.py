"""A snapshot of a job for people: as facts and tables, as plain text, and as one line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from elastic.text import duration, plural

SHOWN_PHASES = ("detect", "stop", "rendezvous", "first_step")
NODE_HEADER = ("RANK", "NODE", "ADDRESS", "STATE", "LAST BEAT", "WORKERS")
INCIDENT_HEADER = (
    "ROUND",
    "ENDED",
    "CAUSE",
    "DETECT",
    "STOP",
    "RENDEZVOUS",
    "FIRST STEP",
    "REASON",
)
PIDS_MAX = 4  # workers of one node that are shown with their pids

GOOD, BAD, WARN, PLAIN = "good", "bad", "warn", ""
_TONES = {"running": GOOD, "succeeded": GOOD, "failed": BAD, "forming": WARN, "stopped": WARN}

Rows = list[tuple[str, ...]]


class Fact(NamedTuple):
    label: str
    text: str
    tone: str = PLAIN


def state_of(snapshot: dict[str, Any]) -> tuple[str, str]:
    """One word for the state of the job, and its tone."""
    result = snapshot["result"]
    if result is None and snapshot["hang"]:
        return "HUNG", BAD
    state = str(snapshot["phase"] if result is None else result["outcome"])
    return state, _TONES.get(state, PLAIN)


def facts(snapshot: dict[str, Any]) -> list[Fact]:
    found = [_state(snapshot), *_hang(snapshot), *_progress(snapshot), *_saved(snapshot)]
    if snapshot["round"] is not None:
        text = (
            f"{snapshot['round']}: {plural(snapshot['nodes_in_round'], 'node')}, world size "
            f"{snapshot['world_size']}, master {snapshot['master_addr']}:{snapshot['master_port']}"
        )
        found.append(Fact("round", text))
    settings = snapshot["settings"]
    least, most = settings["min_nodes"], settings["max_nodes"]
    wanted = f"{least} wanted" if least == most else f"{least} to {most} wanted"
    if snapshot["phase"] == "forming":
        joined = sum(one["state"] == "waiting" for one in snapshot["nodes"])
        found.append(Fact("nodes", f"{wanted}, {joined} joined"))
    else:
        waiting = f"{snapshot['waiting_nodes']} waiting, {snapshot['spare_nodes']} spare"
        found.append(Fact("nodes", f"{wanted}, {waiting}"))
    changes = snapshot["membership_changes"]
    used = f"{snapshot['restarts']} of {settings['max_restarts']} used"
    found.append(Fact("restarts", f"{used}, {plural(changes, 'membership change')}"))
    found.append(Fact("coordinator", _coordinator(snapshot["coordinator"])))
    if snapshot["goodput"] is not None:
        elapsed = snapshot["time"] - snapshot["began"]
        text = (
            f"{duration(round(snapshot['running_seconds'], 1))} of "
            f"{duration(round(elapsed, 1))} since {clock(snapshot['began'])}, "
        )
        # Without steps the time of imports, builds and deadlocks would count as training.
        is_known = snapshot["progress"] is not None or snapshot["result"] is not None
        text += f"goodput {100 * snapshot['goodput']:.1f} %" if is_known else "no steps reported"
        found.append(Fact("running", text))
    if snapshot["stall"] is not None and snapshot["result"] is None:
        found.append(Fact("stalled", stall_text(snapshot["stall"]), WARN))
    if snapshot["mismatch"] is not None and snapshot["result"] is None:
        found.append(Fact("mismatch", snapshot["mismatch"], WARN))
    for one in snapshot["stragglers"]:
        text = (
            f"rank {one['rank']} on {one['node']}: at step {one['step']}, no progress for "
            f"{duration(round(one['idle_seconds'], 1))} while other ranks advance"
        )
        found.append(Fact("straggling", text, WARN))
    found += [Fact("found", text, WARN) for text in findings(snapshot)]
    found += [Fact("excluded", excluded_text(one), WARN) for one in snapshot["excluded"]]
    return [one for one in found if one.text]


def findings(snapshot: dict[str, Any]) -> list[str]:
    """What was found on hosts, without why one of them is excluded."""
    known = {(one["host"], one["reason"]) for one in snapshot["excluded"]}
    return [
        f"{one['host']} at {clock(one['time'])}: {one['text']}"
        for one in snapshot["findings"]
        if (one["host"], one["text"]) not in known
    ]


def excluded_text(one: dict[str, Any]) -> str:
    times = "" if one["times"] == 1 else f", {one['times']} times so far"
    return f"{one['host']} until {clock(one['until'])}{times}: {one['reason']}"


def stall_text(stall: dict[str, Any]) -> str:
    idle = duration(round(stall["idle_seconds"], 1))
    place = f"; it is {stall['place']}" if stall["place"] else ""
    return f"{stall['message']} (for {idle}){place}"


def _state(snapshot: dict[str, Any]) -> Fact:
    result = snapshot["result"]
    if result is not None and result["message"]:
        text = f"{result['message']} (exit code {result['exit_code']})"
        return Fact("result", text, state_of(snapshot)[1])
    return Fact("state", snapshot["description"])


def _hang(snapshot: dict[str, Any]) -> list[Fact]:
    hang = snapshot["hang"]
    if hang is None or snapshot["result"] is not None:
        return []
    suspect = ""
    if hang["rank"] is not None:
        place = f", {hang['place']}" if hang["place"] else ""
        suspect = f"; suspect: rank {hang['rank']}{place}"
    idle = duration(round(hang["idle_seconds"], 1))
    since = f", since step {hang['step']}" if hang["step"] is not None else ""
    return [Fact("hung", f"no rank has made progress for {idle}{since}{suspect}", BAD)]


def _progress(snapshot: dict[str, Any]) -> list[Fact]:
    progress = snapshot["progress"]
    if progress is None or snapshot["result"] is not None:
        return []
    if snapshot["hang"]:
        progress = progress | {"step_seconds": None}  # the recent pace is no longer true
    return [Fact("progress", progress_text(progress))]


def _saved(snapshot: dict[str, Any]) -> list[Fact]:
    saved = snapshot["saved"]
    if saved is None or snapshot["result"] is not None:
        return []
    age = duration(round(saved["age_seconds"], 1))
    text = f"step {saved['step']} of every rank, {age} old; "
    if saved["copied_step"] is not None:
        text += f"step {saved['copied_step']} on another node, too"
    elif snapshot["nodes_in_round"] > 1:
        text += "not copied to another node yet"
    else:
        text += "a lost node loses it: there is no other one"
    return [Fact("in memory", text), *_memory(saved["memory"])]


def _memory(memory: dict[str, Any] | None) -> list[Fact]:
    if memory is None:
        return []
    text = f"snapshots {_bytes(memory['snapshot_bytes'])}, copies {_bytes(memory['copy_bytes'])}"
    limit, needed = memory["limit_bytes"], memory["needed_bytes"]
    if limit is not None:
        text += f"; {memory['node']} needs up to {_bytes(needed)} and may use {_bytes(limit)}"
    return [Fact("memory", text, BAD if limit is not None and needed > limit else PLAIN)]


def _bytes(count: int) -> str:
    value = count / (1 << 20)
    return f"{value:.1f} MiB" if value < 1024 else f"{value / 1024:.1f} GiB"


def progress_text(progress: dict[str, Any]) -> str:
    text = f"step {progress['step']}"
    slowest = progress["slowest_step"]
    if slowest is not None and slowest < progress["step"]:
        text += f", slowest rank at {slowest}"
    seconds = progress["step_seconds"]
    if seconds:
        per_second = 1 / seconds
        digits = 0 if per_second >= 100 else 1 if per_second >= 10 else 2
        text += f", {per_second:.{digits}f} steps/s, {_short_step(seconds)} per step"
    return text


def _short_step(seconds: float) -> str:
    return duration(round(seconds, 1 if seconds >= 10 else 4 if seconds >= 0.01 else 6))


def _coordinator(coordinator: dict[str, Any]) -> str:
    address = coordinator["address"] or ""
    where = coordinator["node"] or "a separate process, or a node outside the round"
    if address.startswith("unix:"):
        where = "in the job's only agent"
    at = f" at {address}" if address else ""
    voters = ", ".join(coordinator["voters"])
    kept = f", voters {voters}" if voters else ""
    return f"{where}{at}, term {coordinator['term']}{kept}"


def node_rows(snapshot: dict[str, Any]) -> Rows:
    rows: Rows = []
    for node in snapshot["nodes"]:
        state = node["state"] if node["connected"] else f"{node['state']}, disconnected"
        rows.append(
            (
                "-" if node["rank"] is None else str(node["rank"]),
                node["name"],
                node["address"] or "-",
                state,
                f"{node['last_beat_seconds']:.1f} s ago",
                workers_text(node["workers"] or (), is_over=snapshot["result"] is not None),
            )
        )
    return rows


def workers_text(workers: Sequence[dict[str, Any]], *, is_over: bool = False) -> str:
    """``2 running (0:1201 1:1202)``; many workers without pids, but those that failed.

    ``is_over``: the job has ended, so that the agents stop the workers that still run.
    """
    parts = []
    for state, number in Counter(one["state"] for one in workers).items():
        shown = [
            f"{one['rank']}:{one['pid']}"
            + (f" exit code {one['exit_code']}" if state == "failed" else "")
            for one in workers
            if one["state"] == state and (len(workers) <= PIDS_MAX or state == "failed")
        ]
        shown_state = "being stopped" if is_over and state in ("starting", "running") else state
        parts.append(f"{number} {shown_state}" + (f" ({' '.join(shown)})" if shown else ""))
    return ", ".join(parts) or "-"


def incident_rows(snapshot: dict[str, Any]) -> Rows:
    return [
        (
            str(one["round"]),
            clock(one["ended"]),
            one["cause"].replace("_", " "),
            *(_short(one["phases"][name]) for name in SHOWN_PHASES),
            one["reason"] + (f"; {one['rule'].partition(' (')[0]}" if one["rule"] else ""),
        )
        for one in snapshot["rounds"]
        if one["cause"] is not None
    ]


def text(snapshot: dict[str, Any]) -> str:
    """Plain text: a few lines about the job, then tables."""
    lines = [f"job {snapshot['job']}: {state_of(snapshot)[0]} at {clock(snapshot['time'])}"]
    lines += [*(f"  {one.label:<12} {one.text}" for one in facts(snapshot)), ""]
    lines += table([NODE_HEADER, *node_rows(snapshot)])
    if incidents := incident_rows(snapshot):
        lines += ["", *table([INCIDENT_HEADER, *incidents])]
    return "\n".join(lines) + "\n"


def line(snapshot: dict[str, Any]) -> str:
    """One line, for a log of changes."""
    parts = [f"{clock(snapshot['time'])} {state_of(snapshot)[0]}"]
    if snapshot["round"] is not None:
        size = f"{plural(snapshot['nodes_in_round'], 'node')}, world size {snapshot['world_size']}"
        parts.append(f"round {snapshot['round']} on {size}")
    if snapshot["waiting_nodes"] or snapshot["spare_nodes"]:
        parts.append(f"{snapshot['waiting_nodes']} waiting, {snapshot['spare_nodes']} spare")
    away = [one["name"] for one in snapshot["nodes"] if not one["connected"]]
    if away:
        parts.append(f"disconnected: {', '.join(away)}")
    others = [one for one in facts(snapshot) if one.label not in _NOT_IN_LINE]
    parts += [one.text if one.label == "progress" else f"{one.label}: {one.text}" for one in others]
    return "; ".join(parts)


_NOT_IN_LINE = ("state", "round", "nodes", "restarts", "coordinator", "running")


def change_of(snapshot: dict[str, Any]) -> tuple[object, ...]:
    """What is worth a new line, when it differs."""
    return (
        state_of(snapshot)[0],
        *(snapshot[key] for key in ("round", "world_size", "waiting_nodes", "spare_nodes")),
        snapshot["hang"] and snapshot["hang"]["rank"],
        [one["rank"] for one in snapshot["stragglers"]],
        [(one["host"], one["times"]) for one in snapshot["excluded"]],
        [(one["name"], one["connected"], one["state"]) for one in snapshot["nodes"]],
    )


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]])
        for row in rows
    ]


def _short(seconds: float | None) -> str:
    return "-" if seconds is None else duration(round(seconds, 3))


def clock(at: float | None) -> str:
    return "-" if at is None else time.strftime("%H:%M:%S", time.localtime(at))
