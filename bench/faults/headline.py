"""Draws the README's picture: how long training stands still after a fault, each run a point."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.faults.picture import COLORS, OTHER, text_at
from bench.faults.reduce import NOT_APPLICABLE, has_trained
from bench.faults.report import Result, by_scene

# The faults that users have. --headline of the campaign runs them.
HEADLINE = ("worker-killed", "node-killed", "host-lost", "first-host-lost", "worker-hangs",
            "node-joins", "agent-preempted", "agent-killed")  # fmt: skip
# The scenes of the picture, and what it calls them.
SCENES = {
    "worker-killed": "a process is killed",
    "node-killed": "a whole node is killed",
    "host-lost": "a host loses its network",
    "worker-hangs": "a process hangs",
}
TITLES = {"ft_launcher": "NVRx ft_launcher", "elastic-launch-plain": "elastic-launch"}
WIDTH, LEFT, RIGHT, ROW, GAP, RADIUS = 860, 175, 232, 17, 14, 4
STEP_S = 10.0  # between two lines of the axis
LINE_CHARACTERS = 135


class Runs(NamedTuple):
    """What one launcher did in one scene."""

    runs: int
    seconds: tuple[float, ...]  # from the fault to the next step, of the runs in which it came
    wrong: int  # of these, in how many something else was wrong

    def text(self) -> str:
        if not self.seconds:
            return "did not recover"
        least, most = min(self.seconds), max(self.seconds)
        text = f"median {duration(statistics.median(self.seconds))}, {spread(least, most)}"
        if len(self.seconds) < self.runs:
            text += f"; {self.runs - len(self.seconds)} of {self.runs} never"
        return text + (f"; {self.wrong} wrong *" if self.wrong else "")


def title(launcher: str, settings: str) -> str:
    """What pages and pictures call a launcher with these settings."""
    return TITLES.get(launcher, launcher) + (" --warm" if "--warm" in settings.split() else "")


def runs_of(results: Sequence[Mapping[str, Any]]) -> Runs:
    good = [one for one in results if has_trained(one) and one["first_step"] is not None]
    wrong = sum(one["outcome"] != "ok" for one in good)
    return Runs(len(results), tuple(one["first_step"] for one in good), wrong)


def groups(results: Sequence[Result]) -> dict[str, dict[str, Runs]]:
    """By scene and launcher, without what was not run."""
    found = by_scene([one for one in results if one["outcome"] != NOT_APPLICABLE])
    return {
        scene: {launcher: runs_of(runs) for launcher, runs in found[scene].items()}
        for scene in SCENES
        if scene in found
    }


def svg(
    results: Sequence[Result],
    versions: Mapping[str, str],
    source: str,
    settings: Mapping[str, str] | None = None,
) -> str:
    """`versions`, `settings`: of each launcher, in the order of the rows."""
    found = groups(results)
    launchers = [name for name in versions if any(name in group for group in found.values())]
    longest = max(
        (max(r.seconds, default=0.0) for g in found.values() for r in g.values()), default=0
    )
    last = STEP_S * max(1, -(-longest // STEP_S))

    def x(at: float) -> float:
        return LEFT + (WIDTH - RIGHT - LEFT) * at / last

    body, y = list(_legend(launchers, versions, settings or {})), 70.0
    for scene, group in found.items():
        shown = [name for name in launchers if name in group]
        body.append(text_at(12, y + ROW * (len(shown) - 1) / 2 + 4, SCENES[scene], "title"))
        for name in shown:
            color = _color(name)
            for at in group[name].seconds:
                body.append(f'<circle cx="{x(at):.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{color}"/>')
            if group[name].seconds:
                at = x(statistics.median(group[name].seconds))
                body.append(f'<path d="M{at:.1f} {y - 7:.1f}v14" stroke="{color}" class="median"/>')
            body.append(text_at(WIDTH - RIGHT + 14, y + 4, group[name].text(), "value"))
            y += ROW
        y += GAP
    bottom = y - GAP
    grid = []
    for number in range(int(last / STEP_S) + 1):
        at = number * STEP_S
        grid.append(f'<path d="M{x(at):.1f} 57V{bottom:.0f}" class="grid"/>')
        grid.append(text_at(x(at), 52, f"{at:.0f} s", "tick"))
    notes = [text_at(12, bottom + 18 + 14 * n, line, "source")
             for n, line in enumerate(_notes(found, versions, source))]  # fmt: skip
    height = bottom + 18 + 14 * len(notes)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            'role="img">',
            "<title>Seconds from a fault until training continues, each run a point</title>",
            f"<style>{_STYLE}</style>",
            *grid,
            *body,
            *notes,
            "</svg>",
            "",
        ]
    )


def _legend(
    launchers: Sequence[str], versions: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[str]:
    yield text_at(12, 18, "Seconds from the fault to the next training step", "title")
    x = 12.0
    for name in launchers:
        label = f"{title(name, settings.get(name, ''))} {versions[name]}"
        yield f'<circle cx="{x + 5:.1f}" cy="28" r="{RADIUS}" fill="{_color(name)}"/>'
        yield text_at(x + 15, 32, label, "name")
        x += 38 + 6.2 * len(label)


def _notes(
    found: Mapping[str, Mapping[str, Runs]], versions: Mapping[str, str], source: str
) -> list[str]:
    every = [one for group in found.values() for one in group.values()]
    counts = {one.runs for one in every} or {0}
    runs = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    lines = _wrapped(f"Points: runs ({runs} of each); line: their median. {source}")
    if any(one.wrong for one in every):
        lines += _wrapped(
            "* training went on, but an exit code was wrong, a process was left behind, or "
            "another process was named as the cause"
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
    digits = 2 if seconds < 1 else 1 if seconds < 10 else 0
    return f"{seconds:.{digits}f} s"


def spread(least: float, most: float) -> str:
    """The range of some durations, which have one unit."""
    return f"{duration(least).removesuffix(' s')} to {duration(most)}"


def _color(launcher: str) -> str:
    return COLORS.get(launcher, OTHER)


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}"
    ".tick{text-anchor:middle;fill:#57606a}.source{font-size:10.5px;fill:#57606a}"
    ".grid{stroke:#d0d7de}.median{stroke-width:2}circle{fill-opacity:.55}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick,.source{fill:#8b949e}"
    ".grid{stroke:#30363d}}"
)
