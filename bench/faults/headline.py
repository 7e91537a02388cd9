"""Draws the README's picture: how long training stands still after a fault, by launcher."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.faults.picture import COLORS, OTHER, LogScale, text_at
from bench.faults.reduce import NOT_APPLICABLE, has_trained
from bench.faults.report import Result, by_scene

# The scenes of the picture, and what it calls them.
SCENES = {
    "worker-killed": "a process is killed",
    "worker-hangs": "a process hangs",
    "agent-killed": "a launcher is killed",
    "node-killed": "a whole node is killed",
    "host-lost": "a host loses its network",
    "first-host-lost": "the first host loses it",
    "node-joins": "a node joins",
    "agent-preempted": "a node is preempted",
}
TITLES = {"ft_launcher": "NVRx ft_launcher"}
# What a launcher did not do; in the other scenes it "did not recover".
FAILED = {"node-joins": "did not take the node"}
WIDTH, LEFT, RIGHT, ROW, BAR, GAP = 860, 215, 145, 14, 9, 12
FIRST_S, LAST_S = 0.01, 120.0
TICKS = {0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s", 10.0: "10 s", 60.0: "1 min"}
LINE_CHARACTERS = 130
_SCALE = LogScale(FIRST_S, LAST_S, LEFT, WIDTH - RIGHT)


class Bar(NamedTuple):
    """What one launcher did in one scene."""

    runs: int
    trained: int  # runs in which training went on
    seconds: float | None  # median of those; None: training was not interrupted, or never went on
    is_clean: bool  # in none of those was anything else wrong


def bar(runs: Sequence[Mapping[str, Any]]) -> Bar:
    good = [run for run in runs if has_trained(run)]
    times = [run["first_step"] for run in good if run["first_step"] is not None]
    middle = statistics.median(times) if times else None
    return Bar(len(runs), len(good), middle, all(run["outcome"] == "ok" for run in good))


def bars(results: Sequence[Result]) -> dict[str, dict[str, Bar]]:
    """By scene and launcher, without what was not run."""
    ran = [one for one in results if one["outcome"] != NOT_APPLICABLE]
    found = by_scene(ran)
    return {
        scene: {launcher: bar(runs) for launcher, runs in found[scene].items()}
        for scene in SCENES
        if scene in found
    }


def svg(results: Sequence[Result], versions: Mapping[str, str], source: str) -> str:
    """`versions`: of each launcher, in the order of the bars."""
    found = bars(results)
    launchers = [name for name in versions if any(name in group for group in found.values())]
    body, y = list(_legend(launchers, versions)), 62.0
    for scene, group in found.items():
        shown = [name for name in launchers if name in group]
        body.append(text_at(12, y + ROW * (len(shown) - 1) / 2 + 4, SCENES[scene], "title"))
        for name in shown:
            body += _row(name, group[name], FAILED.get(scene, "did not recover"), y)
            y += ROW
        y += GAP
    bottom = y - GAP
    grid = []
    for at, label in TICKS.items():
        x = _SCALE.x(at)
        grid.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="48" y2="{bottom:.0f}" class="grid"/>')
        grid.append(text_at(x, 42, label, "tick"))
    notes = [text_at(12, bottom + 18 + 14 * n, line, "source")
             for n, line in enumerate(_notes(found, versions, source))]  # fmt: skip
    height = bottom + 18 + 14 * len(notes)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            'role="img">',
            "<title>Time from a fault until training continues, logarithmic scale</title>",
            f"<style>{_STYLE}</style>",
            *grid,
            *body,
            *notes,
            "</svg>",
            "",
        ]
    )


def _legend(launchers: Sequence[str], versions: Mapping[str, str]) -> Iterator[str]:
    yield text_at(12, 18, "Time from the fault to the next training step", "title")
    x = 330.0
    for name in launchers:
        label = f"{TITLES.get(name, name)} {versions[name]}"
        yield f'<rect x="{x:.1f}" y="9" width="10" height="10" rx="2" fill="{_color(name)}"/>'
        yield text_at(x + 15, 18, label, "name")
        x += 45 + 6.2 * len(label)


def _row(launcher: str, found: Bar, failure: str, y: float) -> list[str]:
    if not found.trained:
        at = _SCALE.x(LAST_S)
        mark = f"M{at - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        return [
            f'<line x1="{LEFT}" x2="{at - 8:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_color(launcher)}" class="never"/>',
            f'<path d="{mark}" class="cross"/>',
            text_at(at + 9, y + 4, failure, "bad"),
        ]
    text = "no interruption" if found.seconds is None else duration(found.seconds)
    lost = found.runs - found.trained
    if lost:
        text += f", {lost} of {found.runs} never"
    if not found.is_clean:
        text += " *"
    end = _SCALE.x(found.seconds if found.seconds is not None else FIRST_S)
    return [
        f'<rect x="{LEFT}" y="{y - BAR / 2:.1f}" width="{max(2.0, end - LEFT):.1f}" '
        f'height="{BAR}" rx="2" fill="{_color(launcher)}"/>',
        text_at(max(end, LEFT + 2.0) + 6, y + 4, text, "bad" if lost else "value"),
    ]


def _notes(
    found: Mapping[str, Mapping[str, Bar]], versions: Mapping[str, str], source: str
) -> list[str]:
    every = [one for group in found.values() for one in group.values()]
    counts = {one.runs for one in every} or {0}
    runs = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    lines = [
        "Logarithmic scale, medians. The first host is that of the rendezvous.",
        f"Runs of each: {runs}; {source}",
    ]
    if any(one.trained and not one.is_clean for one in every):
        lines.append(
            "* something else was wrong: an exit code, a process left behind, or the wrong process "
            "named"
        )
    ran = [name for name in versions if any(name in group for group in found.values())]
    missing: dict[str, list[str]] = {}  # scenes by launchers
    for scene, what in SCENES.items():
        absent = [name for name in ran if name not in found.get(scene, {})]
        if absent:
            missing.setdefault(", ".join(absent), []).append(what)
    not_run = [name for name in versions if name not in ran]
    not_run += [f"{', '.join(scenes)} (by {names})" for names, scenes in missing.items()]
    if not_run:
        lines += _wrapped(f"Not run: {'; '.join(not_run)}")
    return lines


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= LINE_CHARACTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _color(launcher: str) -> str:
    return COLORS.get(launcher, OTHER)


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}"
    ".tick{text-anchor:middle;fill:#57606a}.source{font-size:10.5px;fill:#57606a}"
    ".bad{fill:#cf222e}.cross{stroke:#cf222e;stroke-width:2}"
    ".never{stroke-width:1.5;stroke-dasharray:1 5;stroke-linecap:round}.grid{stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick,.source{fill:#8b949e}"
    ".bad{fill:#ff7b72}.cross{stroke:#ff7b72}.grid{stroke:#30363d}}"
)
