"""The results of a campaign as JSON and as Markdown."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.faults.launchers import Launcher, Missing
from bench.faults.reduce import HANG, NOT_APPLICABLE, OK, WRONG, Measures
from bench.faults.scenes import SCENES
from harness import machine

TIMES = ("detected", "stopped", "round", "running", "first_step")
Result = dict[str, Any]


def result(
    scene: str, launcher: str, run: int, found: Measures, busy: float | None = None
) -> Result:
    """``busy``: how many processors were busy before the run began."""
    made = {"scene": scene, "launcher": launcher, "run": run, **asdict(found)}
    return made if busy is None else made | {"busy": round(busy, 3)}


def facts(launchers: Iterable[Launcher]) -> dict[str, Any]:
    """What the results are tied to: commit, versions, settings and machine."""
    kept = ("date", "cpu", "cores", "kernel", "libc", "python", "torch", "load average")
    found = machine.facts(Path("nowhere"), private_network=True, torchrun=None)
    return {
        "commit": found["commit"],
        "machine": {name: found[name] for name in kept},
        "launchers": {
            launcher.name: {"version": _version(launcher), "settings": launcher.settings()}
            for launcher in launchers
        },
    }


def other_source(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Why new runs may not stand beside stored ones, as a predicate; "": they may."""
    if not stored:
        return ""
    if stored["commit"] != now["commit"]:
        return f"has runs of commit {stored['commit']}, this is {now['commit']}"
    for name in ("cpu", "cores", "kernel", "python", "torch"):
        before, after = stored["machine"][name], now["machine"][name]
        if before != after:
            return f"has runs of a machine with {name} {before}, this one has {after}"
    return ""


def _version(launcher: Launcher) -> str:
    try:
        return launcher.version()
    except Missing as why:
        return f"not run: {why}"


def by_scene(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """The runs of each scene by launcher, in the order of the table of scenes."""
    found: dict[str, dict[str, list[Result]]] = {}
    for scene in SCENES:
        for one in results:
            if one["scene"] == scene.name:
                found.setdefault(scene.name, {}).setdefault(one["launcher"], []).append(one)
    return found


def outcome(runs: Sequence[Mapping[str, Any]]) -> str:
    """`ok` if every run was; otherwise what went wrong, and how often."""
    if all(run["outcome"] == NOT_APPLICABLE for run in runs):
        return NOT_APPLICABLE
    counts = {kind: sum(run["outcome"] == kind for run in runs) for kind in (OK, WRONG, HANG)}
    if counts[OK] == len(runs):
        return OK
    parts = [f"{count} {kind}" for kind, count in counts.items() if count]
    return f"**{', '.join(parts)}**"


def median(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [run[name] for run in runs if run[name] is not None]
    return statistics.median(values) if len(values) == len(runs) else None


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"


def spread(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    """Least, median and greatest of the runs; one that has none makes it a "-"."""
    values = [run[name] for run in runs if run[name] is not None]
    if not values or len(values) != len(runs):
        return "-"
    three = (min(values), statistics.median(values), max(values))
    return " / ".join(map(seconds, three)) if len(values) > 1 else seconds(values[0])


def table(
    results: Sequence[Result],
    launchers: Sequence[str],
    *,
    has_times: bool = True,
    titles: Mapping[str, str] | None = None,
) -> str:
    """One row for each scene: outcome of each launcher, and seconds to the first step."""
    head = ["scene", "what is done"]
    for name in launchers:
        title = (titles or {}).get(name, name)
        head += [title, "first step, s"] if has_times else [title]
    columns = "---|---:|" if has_times else "---|"
    lines = [f"| {' | '.join(head)} |", f"|---|---|{columns * len(launchers)}"]
    whats = {scene.name: scene.what for scene in SCENES}
    for scene, found in by_scene(results).items():
        cells = [f"`{scene}`", whats[scene]]
        for name in launchers:
            runs = found.get(name, [])
            cells.append(outcome(runs) if runs else "")
            if has_times:
                cells.append(spread(runs, "first_step") if runs else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def csv_text(results: Sequence[Result]) -> str:
    """Every run: the times after the fault, what was left behind, and who was named."""
    made = io.StringIO()
    lines = csv.writer(made, lineterminator="\n")
    lines.writerow(
        (
            *("scene", "launcher", "run", "outcome", "why"),
            *(f"{name}_s" for name in TIMES),
            *("left_behind", "culprit", "exit_codes", "busy_before"),
        )
    )
    for scene, found in by_scene(results).items():
        for launcher, runs in found.items():
            for run in runs:
                times = ["" if run[name] is None else run[name] for name in TIMES]
                codes = " ".join("-" if c is None else str(c) for c in run["codes"].values())
                lines.writerow(
                    (
                        *(scene, launcher, run["run"], run["outcome"], run["why"]),
                        *times,
                        *(run["orphans"], run["culprit"] or "", codes, run.get("busy", "")),
                    )
                )
    return made.getvalue()


def totals(
    results: Sequence[Result], launchers: Sequence[str], titles: Mapping[str, str] | None = None
) -> str:
    titles = titles or {}
    lines = [
        "| launcher | runs | ok | wrong | hang | not applicable | left processes behind "
        "| culprit right / wrong / none |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name in launchers:
        runs = [one for one in results if one["launcher"] == name]
        counts = [
            sum(one["outcome"] == kind for one in runs)
            for kind in (OK, WRONG, HANG, NOT_APPLICABLE)
        ]
        orphans = sum(one["orphans"] > 0 for one in runs)
        named = [sum(one["culprit"] == kind for one in runs) for kind in ("right", "wrong", "none")]
        lines.append(
            f"| {titles.get(name, name)} | {len(runs)} | {' | '.join(map(str, counts))} "
            f"| {orphans} | {' / '.join(map(str, named))} |"
        )
    return "\n".join(lines)
