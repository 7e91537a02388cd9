"""What launchers do when processes, hosts and networks of a job fail.

    python -m bench.faults --launcher torchrun --launcher ft_launcher --launcher elastic-launch
    python -m bench.faults --launcher elastic-launch --scene worker-killed --runs 5
    python -m bench.faults --list

Needs root, iproute2, util-linux and torch; every host is a network namespace. --launcher
NAME=PATH takes a program of another environment. Runs that the file of --json has already are not
repeated, so that a campaign can be continued; SIGINT and SIGTERM end it after the runs that have
begun. Prints Markdown; docs/evidence.md explains it.

    python -m bench.faults --headline --idle --runs 7 --json bench/results/headline.json

The faults that users have. With --idle a run begins when the processors were idle for two seconds,
and how busy they were is stored with it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import namespaces

from bench.faults import headline, picture, report
from bench.faults.campaign import run
from bench.faults.launchers import LAUNCHERS, Launcher, Missing, chosen
from bench.faults.reduce import OK
from bench.faults.scenes import BY_NAME, SCENES, Scene
from harness import machine


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(argv)
    if given.list:
        for scene in SCENES:
            print(f"{scene.name:24} {scene.what}")
        return 0
    try:
        launchers = [chosen(text) for text in given.launcher or LAUNCHERS]
    except ValueError as error:
        parser.error(str(error))
    if unknown := set(given.scene) - set(BY_NAME):
        parser.error(f"unknown scene: {', '.join(sorted(unknown))} (--list has them)")
    if why_not := namespaces.why_not():
        print(f"bench.faults: {why_not}", file=sys.stderr)
        return 2
    names = [*given.scene, *(headline.HEADLINE if given.headline else ())]
    scenes = [BY_NAME[name] for name in names] or list(SCENES)
    store = Store(given.json)
    facts = report.facts(launchers)
    if why_not := report.other_source(store.facts, facts):
        print(f"bench.faults: {given.json} {why_not}: give another --json", file=sys.stderr)
        return 2
    store.facts = _merged(store.facts, facts)
    if given.note:
        store.facts["note"] = given.note
    logs = given.logs or Path(tempfile.mkdtemp(prefix="faults-"))
    present = [launcher for launcher in launchers if _is_there(launcher)]
    tasks = [
        (number, scene, launcher)
        for number in range(1, given.runs + 1)
        for scene in scenes
        for launcher in present
        if not store.has(scene.name, launcher.name, number)
    ]
    # A run that ends early would leave its job behind: those that have begun are finished.
    is_stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_stopped.set())
    with ThreadPoolExecutor(given.jobs) as pool:
        for _ in pool.map(
            lambda task: is_stopped.is_set() or _one(*task, logs, store, given.idle), tasks
        ):
            pass
    names = list(store.facts["launchers"])
    print(report.totals(store.results, names), report.table(store.results, names), sep="\n\n")
    if given.picture is not None:
        given.picture.write_text(picture.svg(store.results, names, ""))
    print(f"\nlogs: {logs}", file=sys.stderr)
    return 0


IDLE_S, IDLE_LIMIT_S = 2.0, 600.0
BUSY_MAX = 0.1  # processors


class Store:
    """The results, written after each run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        stored = json.loads(path.read_text()) if path is not None and path.exists() else {}
        self.facts: dict[str, Any] = stored.get("facts", {})
        self.results: list[report.Result] = stored.get("results", [])

    def has(self, scene: str, launcher: str, number: int) -> bool:
        return any(
            (one["scene"], one["launcher"], one["run"]) == (scene, launcher, number)
            for one in self.results
        )

    def add(self, one: report.Result) -> None:
        with self._lock:
            self.results.append(one)
            if self._path is not None:
                content = {"facts": self.facts, "results": self.results}
                self._path.write_text(json.dumps(content, indent=1) + "\n")


def _one(
    number: int, scene: Scene, launcher: Launcher, logs: Path, store: Store, is_idle: bool
) -> None:
    folder = logs / launcher.name / f"{scene.name}-{number}"
    try:
        busy = _wait_until_idle() if is_idle else None
        found = run(scene, launcher, folder)
    except (RuntimeError, OSError, StopIteration) as error:  # the run says nothing: not stored
        print(f"{scene.name}, {launcher.name}, run {number}: {error!r}", file=sys.stderr)
        return
    store.add(report.result(scene.name, launcher.name, number, found, busy))
    mark = "" if found.outcome == OK else f": {found.why} ({folder})"
    print(f"{scene.name}, {launcher.name}, run {number}: {found.outcome}{mark}", file=sys.stderr)


def _wait_until_idle() -> float:
    """How many processors were busy for the last two seconds. Raises RuntimeError."""
    for _ in range(int(IDLE_LIMIT_S / IDLE_S)):
        before = machine.busy_seconds()
        time.sleep(IDLE_S)
        busy = (machine.busy_seconds() - before) / IDLE_S
        if busy <= BUSY_MAX:
            return busy
    raise RuntimeError(f"{busy:.2f} processors are busy; waited {IDLE_LIMIT_S:g} s")


def _is_there(launcher: Launcher) -> bool:
    try:
        launcher.program()
    except Missing as why:
        print(f"bench.faults: without {launcher.name}: {why}", file=sys.stderr)
        return False
    return True


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The facts of the newest run, the launchers of all, and the last note."""
    return {**old, **new, "launchers": {**old.get("launchers", {}), **new["launchers"]}}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--launcher", action="append", metavar="NAME[=PATH]",
        help=f"repeatable (default: all of {', '.join(LAUNCHERS)})",
    )  # fmt: skip
    parser.add_argument("--scene", action="append", default=[], metavar="NAME", help="repeatable")
    parser.add_argument(
        "--headline", action="store_true", help=f"the scenes {', '.join(headline.HEADLINE)}"
    )
    parser.add_argument(
        "--idle", action="store_true", help="wait before each run until the processors are idle"
    )
    parser.add_argument("--runs", type=int, default=1, help="of each scene with each launcher")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--json", type=Path, help="results, continued if the file exists")
    parser.add_argument("--note", help="a sentence about the machine, for the page of the results")
    parser.add_argument("--picture", type=Path, help="the SVG file that is written")
    parser.add_argument("--logs", type=Path, help="directory for the logs of every run")
    parser.add_argument("--list", action="store_true", help="print the scenes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
