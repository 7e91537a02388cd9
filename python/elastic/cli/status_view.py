"""A snapshot of a job for people: as facts and tables, as plain text, and as one line.

The dashboard shows the same words: ``dashboard_view`` hands them to its page.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from elastic import _C
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

STOPPED = "being stopped"  # until the agents have done so after the job's end

GOOD, BAD, WARN, PLAIN = "good", "bad", "warn", ""
_TONES = {"running": GOOD, "succeeded": GOOD, "failed": BAD, "forming": WARN, "stopped": WARN}

Rows = list[tuple[str, ...]]
# A sentence. A number in it is a time, in seconds since 1970: each reader has a time zone.
Words = str | tuple[str | float, ...]


class Fact(NamedTuple):
    label: str
    words: Words
    tone: str = PLAIN

    @property
    def text(self) -> str:
        return read(self.words)


def read(words: Words) -> str:
    """The sentence with the times of this process's time zone."""
    return "".join(part if isinstance(part, str) else clock(part) for part in parts(words))


def parts(words: Words) -> tuple[str | float, ...]:
    return (words,) if isinstance(words, str) else words


def state_of(snapshot: dict[str, Any]) -> tuple[str, str]:
    """One word for the state of the job, and its tone."""
    result = snapshot["result"]
    if result is None and snapshot["hang"]:
        return "HUNG", BAD
    state = str(snapshot["phase"] if result is None else result["outcome"])
    return state, _TONES.get(state, PLAIN)


def facts(snapshot: dict[str, Any]) -> list[Fact]:
    found = [headline(snapshot), *_progress(snapshot), *_saved(snapshot)]
    if snapshot["hang"] and snapshot["result"] is None:
        found.insert(0, Fact("state", snapshot["description"]))
    if snapshot["round"] is not None:
        master = f"master {snapshot['master_addr']}:{snapshot['master_port']}"
        found.append(Fact("round", f"{snapshot['round']}: {_size(snapshot)}, {master}"))
    found.append(Fact("nodes", nodes_text(snapshot)))
    changes = plural(snapshot["membership_changes"], "membership change")
    found.append(Fact("restarts", f"{restarts_text(snapshot, snapshot['restarts'])}, {changes}"))
    found.append(Fact("coordinator", coordinator_text(snapshot["coordinator"])))
    if snapshot["goodput"] is not None:
        elapsed = duration(round(snapshot["time"] - snapshot["began"], 1))
        goodput = goodput_text(snapshot)
        known = f"goodput {goodput}" if _has_goodput(snapshot) else goodput
        since = (f"{running_text(snapshot)} of {elapsed} since ", snapshot["began"], f", {known}")
        found.append(Fact("running", since))
    found += warnings(snapshot)
    return [one for one in found if one.words]


def headline(snapshot: dict[str, Any]) -> Fact:
    """What the job does, in one sentence."""
    result, hang = snapshot["result"], snapshot["hang"]
    if result is not None and result["message"]:
        text = f"{result['message']} (exit code {result['exit_code']})"
        return Fact("result", text, state_of(snapshot)[1])
    if result is not None or hang is None:
        return Fact("state", snapshot["description"])
    suspect = ""
    if hang["rank"] is not None:
        place = f", {hang['place']}" if hang["place"] else ""
        suspect = f"; suspect: rank {hang['rank']}{place}"
    idle = duration(round(hang["idle_seconds"], 1))
    since = f", since step {hang['step']}" if hang["step"] is not None else ""
    return Fact("hung", f"no rank has made progress for {idle}{since}{suspect}", BAD)


def warnings(snapshot: dict[str, Any]) -> list[Fact]:
    """What is not as usual in the job, and on which hosts."""
    found = []
    if snapshot["result"] is None:
        if snapshot["stall"] is not None:
            found.append(Fact("stalled", stall_text(snapshot["stall"]), WARN))
        if snapshot["mismatch"] is not None:
            found.append(Fact("mismatch", snapshot["mismatch"], WARN))
        for one in snapshot["stragglers"]:
            text = f"rank {one['rank']} on {one['node']}: {lag_text(one)} while other ranks advance"
            found.append(Fact("straggling", text, WARN))
    found += [Fact("found", words, WARN) for words in _findings(snapshot)]
    return found + [Fact("excluded", _excluded(one), WARN) for one in snapshot["excluded"]]


def _findings(snapshot: dict[str, Any]) -> list[Words]:
    """What was found on hosts, without why one of them is excluded."""
    known = {(one["host"], one["reason"]) for one in snapshot["excluded"]}
    return [
        (f"{one['host']} at ", one["time"], f": {one['text']}")
        for one in snapshot["findings"]
        if (one["host"], one["text"]) not in known
    ]


def _excluded(one: dict[str, Any]) -> Words:
    times = "" if one["times"] == 1 else f", {one['times']} times so far"
    return f"{one['host']} until ", one["until"], f"{times}: {one['reason']}"


def stall_text(stall: dict[str, Any]) -> str:
    idle = duration(round(stall["idle_seconds"], 1))
    place = f"; it is {stall['place']}" if stall["place"] else ""
    return f"{stall['message']} (for {idle}){place}"


def lag_text(straggler: dict[str, Any]) -> str:
    idle = duration(round(straggler["idle_seconds"], 1))
    return f"at step {straggler['step']}, no progress for {idle}"


def restarts_text(snapshot: dict[str, Any], used: int) -> str:
    return _C.describe_restarts_used(used, snapshot["settings"]["max_restarts"])


def size_text(nodes: int, world_size: int) -> str:
    """Of a round."""
    return f"{plural(nodes, 'node')}, world size {world_size}"


def _size(snapshot: dict[str, Any]) -> str:
    return size_text(snapshot["nodes_in_round"], snapshot["world_size"])


def nodes_text(snapshot: dict[str, Any]) -> str:
    """How many nodes the job wants, and how many are there beside those of the round."""
    least, most = snapshot["settings"]["min_nodes"], snapshot["settings"]["max_nodes"]
    wanted = f"{least} wanted" if least == most else f"{least} to {most} wanted"
    if snapshot["phase"] == "forming":
        joined = sum(one["state"] == "waiting" for one in snapshot["nodes"])
        return f"{wanted}, {joined} joined"
    return f"{wanted}, {_beside(snapshot)}"


def _beside(snapshot: dict[str, Any]) -> str:
    return f"{snapshot['waiting_nodes']} waiting, {snapshot['spare_nodes']} spare"


def running_text(snapshot: dict[str, Any]) -> str:
    return duration(round(snapshot["running_seconds"], 1))


def goodput_text(snapshot: dict[str, Any]) -> str:
    if snapshot["goodput"] is None:
        return "-"
    return percent(snapshot["goodput"]) if _has_goodput(snapshot) else "no steps reported"


def _has_goodput(snapshot: dict[str, Any]) -> bool:
    """Without steps the time of imports, builds and deadlocks would count as training."""
    return snapshot["progress"] is not None or _is_over(snapshot)


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def progress_of(snapshot: dict[str, Any]) -> dict[str, Any] | None:
    """The progress to show: none of a job that has ended, and no pace of one that hangs."""
    progress: dict[str, Any] | None = snapshot["progress"]
    if progress is None or snapshot["result"] is not None:
        return None
    return progress | {"step_seconds": None} if snapshot["hang"] else progress


def _progress(snapshot: dict[str, Any]) -> list[Fact]:
    progress = progress_of(snapshot)
    return [] if progress is None else [Fact("progress", progress_text(progress))]


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
    text = f"step {step_text(progress)}"
    seconds = progress["step_seconds"]
    return f"{text}, {speed_text(seconds)}, {pace_text(seconds)} per step" if seconds else text


def step_text(progress: dict[str, Any]) -> str:
    """The newest step, and the slowest rank's."""
    step, slowest = progress["step"], progress["slowest_step"]
    behind = slowest is not None and slowest < step
    return f"{step}, slowest rank at {slowest}" if behind else str(step)


def speed_text(seconds: float | None) -> str:
    """``seconds``: for one step; None or 0: not known."""
    if not seconds:
        return "-"
    per_second = 1 / seconds
    digits = 0 if per_second >= 100 else 1 if per_second >= 10 else 2
    return f"{per_second:.{digits}f} steps/s"


def pace_text(seconds: float | None) -> str:
    """As ``speed_text``, the time for one step."""
    if not seconds:
        return "-"
    return duration(round(seconds, 1 if seconds >= 10 else 4 if seconds >= 0.01 else 6))


def coordinator_text(coordinator: dict[str, Any]) -> str:
    address = coordinator["address"] or ""
    where = coordinator["node"] or "a separate process, or a node outside the round"
    if address.startswith("unix:"):
        where = "in the job's only agent"
    at = f" at {address}" if address else ""
    voters = ", ".join(coordinator["voters"])
    kept = f", voters {voters}" if voters else ""
    return f"{where}{at}, term {coordinator['term']}{kept}"


def node_rows(snapshot: dict[str, Any]) -> Rows:
    is_over = _is_over(snapshot)
    return [
        (*node_cells(snapshot, node), workers_text(node["workers"] or (), is_over=is_over))
        for node in snapshot["nodes"]
    ]


def node_cells(snapshot: dict[str, Any], node: dict[str, Any]) -> tuple[str, ...]:
    """The row of a node, without its workers."""
    state = node_state(snapshot, node)
    return (
        "-" if node["rank"] is None else str(node["rank"]),
        node["name"],
        node["address"] or "-",
        state if node["connected"] else f"{state}, disconnected",
        f"{node['last_beat_seconds']:.1f} s ago",
    )


def _is_over(snapshot: dict[str, Any]) -> bool:
    return snapshot["result"] is not None


def node_state(snapshot: dict[str, Any], node: dict[str, Any]) -> str:
    """The last report of a node may be older than the job's end: its agent stops the workers."""
    is_stopped = _is_over(snapshot) and node["state"] == "working"
    return STOPPED if is_stopped else str(node["state"])


def worker_state(worker: dict[str, Any], *, is_over: bool) -> str:
    """As ``node_state``, of a worker."""
    is_stopped = is_over and worker["state"] in ("starting", "running")
    return STOPPED if is_stopped else str(worker["state"])


def exit_text(worker: dict[str, Any]) -> str:
    """``exit code 137`` of a worker that failed, else ""."""
    return f"exit code {worker['exit_code']}" if worker["state"] == "failed" else ""


def workers_text(workers: Sequence[dict[str, Any]], *, is_over: bool = False) -> str:
    """``2 running (0:1201 1:1202)``; many workers without pids, but those that failed.

    ``is_over``: the job has ended.
    """
    counts = []
    states = [worker_state(one, is_over=is_over) for one in workers]
    for state, number in Counter(states).items():
        shown = [
            f"{one['rank']}:{one['pid']} {exit_text(one)}".rstrip()
            for one, its_state in zip(workers, states, strict=True)
            if its_state == state and (len(workers) <= PIDS_MAX or state == "failed")
        ]
        counts.append(f"{number} {state}" + (f" ({' '.join(shown)})" if shown else ""))
    return ", ".join(counts) or "-"


def incident_rows(snapshot: dict[str, Any]) -> Rows:
    return [
        (
            str(one["round"]),
            clock(one["ended"]),
            cause_text(one),
            *map(short, phases_of(one)),
            reason_text(one),
        )
        for one in ended_rounds(snapshot)
    ]


def ended_rounds(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in snapshot["rounds"] if one["cause"] is not None]


def cause_text(ended: dict[str, Any]) -> str:
    return str(ended["cause"]).replace("_", " ")


def phases_of(ended: dict[str, Any]) -> list[float | None]:
    return [ended["phases"][name] for name in SHOWN_PHASES]


def reason_text(ended: dict[str, Any]) -> str:
    rule = f"; {ended['rule'].partition(' (')[0]}" if ended["rule"] else ""
    return f"{ended['reason']}{rule}"


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
    said = [f"{clock(snapshot['time'])} {state_of(snapshot)[0]}"]
    if snapshot["round"] is not None:
        said.append(f"round {snapshot['round']} on {_size(snapshot)}")
    if snapshot["waiting_nodes"] or snapshot["spare_nodes"]:
        said.append(_beside(snapshot))
    away = [one["name"] for one in snapshot["nodes"] if not one["connected"]]
    if away:
        said.append(f"disconnected: {', '.join(away)}")
    others = [one for one in facts(snapshot) if one.label not in _NOT_IN_LINE]
    said += [one.text if one.label == "progress" else f"{one.label}: {one.text}" for one in others]
    return "; ".join(said)


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


def short(seconds: float | None) -> str:
    return "-" if seconds is None else duration(round(seconds, 3))


def clock(at: float | None) -> str:
    return "-" if at is None else time.strftime("%H:%M:%S", time.localtime(at))
