"""``elastic-launch status``: prints the state of a running job, and follows it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from elastic import _environment, observe
from elastic.cli import local_jobs, status_rich, status_view, subcommands
from elastic.cli.console import show
from elastic.cli.options import PROGRAM
from elastic.errors import RendezvousClosed, RendezvousError, RendezvousUnavailable
from elastic.text import duration

RETRY_PAUSE_S = 1.0
# How long a lost coordinator is looked for: as long as the nodes do by default (store_grace). If
# the job had agents on this host and none is left: until another host would have taken over.
RECONNECT_LIMIT_S = 60.0
UNLISTED_LIMIT_S = 10.0
PROGRESS_LINE_S = 10.0  # a line for new steps alone at most so often

Show = Callable[[dict[str, Any]], None]


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} status",
        description="Prints the round, the nodes, the ranks and the restarts of a running job, or "
        "without JOB a list of the jobs of this host. It is read only: no job notices it.",
    )
    subcommands.add_job(made)
    made.add_argument("--json", action="store_true", help="one JSON object per line")
    made.add_argument(
        "--follow",
        action="store_true",
        help="follow the job until it ends: a live view on a terminal if the package rich is "
        "installed, else one line for each change; reconnect when necessary",
    )
    made.add_argument(
        "--no-workers",
        action="store_true",
        help="without the workers' pids and states, which each agent reports on request",
    )
    subcommands.add_seconds(
        made, "--timeout", 5.0, help="limit for connecting and for the first answer"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    console = None if options.json else status_rich.open_console(_environment.inherited())
    hint = ""
    try:
        if not (options.endpoint or options.rdzv_id or options.follow):
            return _list(options.json, console)
        hint = local_jobs.locate(options)
        if options.follow:  # finds a coordinator that moves later
            hint = "" if hint == local_jobs.MOVED else hint
            return _follow(options, console)
        with _connect(options) as job:
            snapshot = job.first(options.timeout)
        if snapshot is None:
            raise RendezvousUnavailable(
                f"{options.endpoint} sent no state within {duration(options.timeout)}"
            )
        if console is not None:
            console.print(status_rich.render(snapshot))
        else:
            _print(json.dumps(snapshot) if options.json else status_view.text(snapshot))
        return 0
    except RendezvousError as error:
        return subcommands.report("status", error, hint)


def _list(is_json: bool, console: Any) -> int:
    """Prints the jobs of this host, one in each line."""
    jobs = observe.local_jobs()
    if is_json:
        for job in jobs:
            where = {"endpoint": job.endpoint, "pids": list(job.pids)}
            silent = {"schema": observe.SCHEMA, "job": job.run_id or None, "error": job.error}
            _print(json.dumps({**(silent if job.snapshot is None else job.snapshot), **where}))
    elif not jobs:
        print(f"{PROGRAM} status: {local_jobs.NO_JOB}", file=sys.stderr)
    elif console is not None:
        console.print(status_rich.listing(local_jobs.rows(jobs)))
        for problem in local_jobs.problems(jobs):
            console.print(problem, highlight=False, markup=False)
    else:
        _print("\n".join([*status_view.table(local_jobs.rows(jobs)), *local_jobs.problems(jobs)]))
    return 0


def _connect(options: argparse.Namespace) -> observe.Observation:
    workers = not options.no_workers
    return local_jobs.connect(options, workers=workers, timeout=options.timeout)


def _follow(options: argparse.Namespace, console: Any) -> int:
    if options.json:
        return _follow_job(options, JsonLines().show, _complain)
    if console is None:
        return _follow_job(options, Lines(_print).show, _complain)
    from rich.live import Live

    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        view = LiveView(live, lambda: int(console.height))
        return _follow_job(options, view.show, view.complain)


def _follow_job(options: argparse.Namespace, show: Show, complain: Callable[[str], None]) -> int:
    """Shows each snapshot. Connects again to a coordinator that was restarted, or to the next."""
    was_connected = was_listed = False
    lost_at: float | None = None
    problem = ""
    last: dict[str, Any] = {}
    while True:
        try:
            with _connect(options) as job:
                while True:
                    snapshot = job.next() if was_connected else job.first()
                    if snapshot is None:
                        continue
                    if not was_connected or lost_at is not None:
                        run_id, was_listed = snapshot["job"], observe.is_local(snapshot["job"])
                    was_connected, lost_at, problem, last = True, None, "", snapshot
                    show(snapshot)
                    if snapshot["result"] is not None:
                        return 0
        except (RendezvousUnavailable, RendezvousClosed) as error:
            # The socket of a job with one node ends with its agent.
            if not was_connected or options.endpoint.startswith("unix:"):
                raise
            now = time.monotonic()
            lost_at = now if lost_at is None else lost_at
            is_gone = was_listed and not observe.is_local(run_id)
            limit = UNLISTED_LIMIT_S if is_gone else RECONNECT_LIMIT_S
            if now - lost_at >= limit:
                left = f"; no agent of {run_id} is left on this host" if is_gone else ""
                raise type(error)(f"{error}{left}; gave up after {duration(limit)}") from None
            if str(error) != problem:
                problem = str(error)
                complain(f"{error}; trying again for {duration(limit)}")
            time.sleep(RETRY_PAUSE_S)
            local_jobs.locate_again(options, last)


class JsonLines:
    """A line for each change."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, snapshot: dict[str, Any]) -> None:
        facts = _without_time(snapshot)
        if facts != self._shown:
            self._shown = facts
            _print(json.dumps(snapshot))


class Lines:
    """The whole state once, then a line for each change and each incident."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._change: object = None
        self._incidents = 0  # the number of the last round that was shown as ended, plus one
        self._step: int | None = None
        self._at = 0.0  # of the last line

    def show(self, snapshot: dict[str, Any]) -> None:
        is_first = self._change is None
        change = status_view.change_of(snapshot)
        step = snapshot["progress"] and snapshot["progress"]["step"]
        is_due = snapshot["time"] - self._at >= PROGRESS_LINE_S and step != self._step
        ended = status_view.ended_rounds(snapshot)
        if is_first:
            self._write(status_view.text(snapshot))
        else:
            for one in ended:
                if one["round"] >= self._incidents:
                    at, cause = status_view.clock(one["ended"]), status_view.cause_text(one)
                    self._write(f"{at} round {one['round']} ended, {cause}: {one['reason']}")
            if change == self._change and not is_due:
                return
            self._write(status_view.line(snapshot))
        self._incidents = max([self._incidents, *(one["round"] + 1 for one in ended)])
        self._change, self._step, self._at = change, step, snapshot["time"]


class LiveView:
    """The state of the job, drawn again in place."""

    def __init__(self, live: Any, height: Callable[[], int]) -> None:
        self._live, self._height = live, height
        self._snapshot: dict[str, Any] | None = None

    def show(self, snapshot: dict[str, Any]) -> None:
        self._snapshot = snapshot
        is_over = snapshot["result"] is not None
        height = None if is_over else self._height()
        self._live.update(status_rich.render(snapshot, height), refresh=True)

    def complain(self, problem: str) -> None:
        if self._snapshot is not None:
            view = status_rich.render(self._snapshot, self._height(), problem)
            self._live.update(view, refresh=True)


def _complain(problem: str) -> None:
    print(f"{PROGRAM} status: {problem}", file=sys.stderr)


def _without_time(snapshot: dict[str, Any]) -> str:
    """The facts whose change is worth a new output."""
    passing = ("time", "running_seconds", "goodput", "description", "progress", "saved")
    kept = {key: value for key, value in snapshot.items() if key not in passing}
    kept["stragglers"] = [one["rank"] for one in snapshot["stragglers"]]
    kept["hang"] = snapshot["hang"] and (snapshot["hang"]["step"], snapshot["hang"]["rank"])
    kept["stall"] = snapshot["stall"] and (snapshot["stall"]["message"], snapshot["stall"]["place"])
    kept["findings"] = [(one["host"], one["text"]) for one in snapshot["findings"]]
    kept["excluded"] = [(one["host"], one["times"]) for one in snapshot["excluded"]]
    kept["nodes"] = [
        {key: value for key, value in node.items() if key != "last_beat_seconds"}
        for node in snapshot["nodes"]
    ]
    return json.dumps(kept)


def _print(text: str) -> None:
    show(f"{text}\n")
