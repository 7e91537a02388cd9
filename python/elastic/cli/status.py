"""``elastic-launch status``: prints the state of a running job, and follows it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from elastic import observe
from elastic.cli import local_jobs, subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import RendezvousClosed, RendezvousError, RendezvousUnavailable
from elastic.text import duration

RETRY_PAUSE_S = 1.0

SHOWN_PHASES = ("detect", "stop", "rendezvous", "first_step")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"{PROGRAM} status",
        description="Prints the round, the nodes, the ranks and the restarts of a running job, or "
        "without JOB a list of the jobs of this host. It is read only: no job notices it.",
    )
    subcommands.add_job(made)
    made.add_argument("--json", action="store_true", help="one JSON object per line")
    made.add_argument(
        "--follow",
        action="store_true",
        help="print again after each change, until the job ends; reconnect when necessary",
    )
    made.add_argument(
        "--no-workers",
        action="store_true",
        help="without the workers' pids and states, which each agent reports on request",
    )
    made.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=5.0,
        help="limit for connecting and for the first answer (default 5)",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    show = _json_line if options.json else text
    hint = ""
    try:
        if not (options.endpoint or options.rdzv_id or options.follow):
            return _list(options.json)
        hint = local_jobs.locate(options)
        if options.follow:
            return _follow(options, show)
        with _connect(options) as job:
            snapshot = job.first(options.timeout)
        if snapshot is None:
            raise RendezvousUnavailable(
                f"{options.endpoint} sent no state within {duration(options.timeout)}"
            )
        _print(show(snapshot))
        return 0
    except BrokenPipeError:  # as in `status --follow | head`
        sys.stderr.close()
        return 0
    except RendezvousError as error:
        return subcommands.report("status", error, hint)


def _list(is_json: bool) -> int:
    """Prints the jobs of this host, one in each line."""
    jobs = observe.local_jobs()
    if is_json:
        for job in jobs:
            if job.snapshot is not None:
                where = {"endpoint": job.endpoint, "pids": list(job.pids)}
                _print(_json_line({**job.snapshot, **where}))
    elif jobs:
        _print("\n".join(_table(local_jobs.rows(jobs))))
    else:
        print(
            f"{PROGRAM} status: no job of this user runs on this host: give HOST:PORT of the "
            "job's coordinator",
            file=sys.stderr,
        )
    return 0


def _connect(options: argparse.Namespace) -> observe.Observation:
    return observe.connect(
        options.endpoint,
        options.rdzv_id,
        workers=not options.no_workers,
        timeout=options.timeout,
        token_file=options.token_file,
    )


def _follow(options: argparse.Namespace, show: Any) -> int:
    """Prints each change. A coordinator that was restarted is looked for until Ctrl-C."""
    shown = problem = ""
    was_connected = False
    ended: dict[str, Any] | None = None
    while ended is None:
        try:
            with _connect(options) as job:
                while ended is None:
                    snapshot = job.next() if was_connected else job.first()
                    if snapshot is None:
                        continue
                    was_connected, problem = True, ""
                    if _without_time(snapshot) != shown:
                        shown = _without_time(snapshot)
                        _print(show(snapshot))
                    if snapshot["result"] is not None:
                        ended = snapshot
        except (RendezvousUnavailable, RendezvousClosed) as error:
            # The socket of a job with one node ends with its agent.
            if not was_connected or options.endpoint.startswith("unix:"):
                raise
            if str(error) != problem:
                problem = str(error)
                print(f"{PROGRAM} status: {error}; trying again", file=sys.stderr)
            time.sleep(RETRY_PAUSE_S)
    return 0


def _without_time(snapshot: dict[str, Any]) -> str:
    """The facts whose change is worth a new output."""
    passing = ("time", "running_seconds", "goodput", "description")
    kept = {key: value for key, value in snapshot.items() if key not in passing}
    kept["stragglers"] = [one["rank"] for one in snapshot["stragglers"]]
    kept["hang"] = snapshot["hang"] and (snapshot["hang"]["step"], snapshot["hang"]["rank"])
    kept["nodes"] = [
        {key: value for key, value in node.items() if key != "last_beat_seconds"}
        for node in snapshot["nodes"]
    ]
    return json.dumps(kept)


def _print(text: str) -> None:
    print(text, flush=True)


def _json_line(snapshot: dict[str, Any]) -> str:
    return json.dumps(snapshot)


def text(snapshot: dict[str, Any]) -> str:
    """The snapshot for people: a few lines about the job, then tables."""
    lines = [*_summary(snapshot), "", *_nodes(snapshot)]
    incidents = [one for one in snapshot["rounds"] if one["cause"] is not None]
    if incidents:
        lines += ["", *_incidents(incidents)]
    return "\n".join(lines) + "\n"


def _summary(snapshot: dict[str, Any]) -> list[str]:
    result = snapshot["result"]
    hang = snapshot["hang"] if result is None else None
    state = snapshot["phase"] if result is None else result["outcome"]
    lines = [f"job {snapshot['job']}: {'HUNG' if hang else state} at {_clock(snapshot['time'])}"]
    if result is not None and result["message"]:
        lines.append(f"  result       {result['message']} (exit code {result['exit_code']})")
    elif snapshot["description"]:
        lines.append(f"  state        {snapshot['description']}")
    if hang is not None:
        suspect = ""
        if hang["rank"] is not None:
            suspect = f"; suspect: rank {hang['rank']}" + (
                f", {hang['place']}" if hang["place"] else ""
            )
        lines.append(
            f"  hung         no rank has made progress for "
            f"{duration(round(hang['idle_seconds'], 1))}, since step {hang['step']}{suspect}"
        )
    if snapshot["round"] is not None:
        lines.append(
            f"  round        {snapshot['round']}: {_count(snapshot['nodes_in_round'])}, world size "
            f"{snapshot['world_size']}, master {snapshot['master_addr']}:{snapshot['master_port']}"
        )
    settings = snapshot["settings"]
    lines.append(
        f"  nodes        {settings['min_nodes']} to {settings['max_nodes']} wanted, "
        f"{snapshot['waiting_nodes']} waiting, {snapshot['spare_nodes']} spare"
    )
    lines.append(
        f"  restarts     {snapshot['restarts']} of {settings['max_restarts']} used, "
        f"{snapshot['membership_changes']} membership changes"
    )
    coordinator = snapshot["coordinator"]
    address = coordinator["address"] or ""
    where = coordinator["node"] or "a separate process, or a node outside the round"
    if address.startswith("unix:"):
        where = "in the job's only agent"
    at = f" at {address}" if address else ""
    voters = ", ".join(coordinator["voters"])
    kept = f", voters {voters}" if voters else ""
    lines.append(f"  coordinator  {where}{at}, term {coordinator['term']}{kept}")
    if snapshot["goodput"] is not None:
        lines.append(
            f"  running      {duration(round(snapshot['running_seconds'], 1))} since "
            f"{_clock(snapshot['began'])}, goodput {100 * snapshot['goodput']:.1f} %"
        )
    for one in snapshot["stragglers"]:
        lines.append(
            f"  straggling   rank {one['rank']} on {one['node']}: at step {one['step']}, "
            f"no progress for {duration(round(one['idle_seconds'], 1))} while other ranks advance"
        )
    return lines


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _nodes(snapshot: dict[str, Any]) -> list[str]:
    rows = [("RANK", "NODE", "ADDRESS", "STATE", "LAST BEAT", "WORKERS (rank:pid state)")]
    for node in snapshot["nodes"]:
        state = node["state"] if node["connected"] else f"{node['state']}, disconnected"
        rows.append(
            (
                "-" if node["rank"] is None else str(node["rank"]),
                node["name"],
                node["address"] or "-",
                state,
                f"{node['last_beat_seconds']:.1f} s ago",
                _workers(node),
            )
        )
    return _table(rows)


def _workers(node: dict[str, Any]) -> str:
    workers = node["workers"]
    if not workers:
        return "-"
    return ", ".join(
        f"{one['rank']}:{one['pid']} {one['state']}"
        + (f" ({one['exit_code']})" if one["state"] == "failed" else "")
        for one in workers
    )


def _incidents(rounds: list[dict[str, Any]]) -> list[str]:
    rows = [("ROUND", "ENDED", "CAUSE", "DETECT", "STOP", "RENDEZVOUS", "FIRST STEP", "REASON")]
    for one in rounds:
        phases = one["phases"]
        rows.append(
            (
                str(one["round"]),
                _clock(one["ended"]),
                one["cause"].replace("_", " "),
                *(_short(phases[name]) for name in SHOWN_PHASES),
                one["reason"],
            )
        )
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]])
        for row in rows
    ]


def _short(seconds: float | None) -> str:
    return "-" if seconds is None else duration(round(seconds, 3))


def _clock(at: float | None) -> str:
    return "-" if at is None else time.strftime("%H:%M:%S", time.localtime(at))
