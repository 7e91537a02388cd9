"""Draws the campaign: a time line for each scene, the launchers one above the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from bench.faults.reduce import NOT_APPLICABLE
from bench.faults.report import Result, by_scene, median, outcome

COLORS = {
    "elastic-launch": "#2da44e",
    "elastic-launch-plain": "#116329",
    "torchrun": "#bf8700",
    "ft_launcher": "#0969da",
}
OTHER = "#57606a"
WIDTH, LEFT, RIGHT, ROW, HEAD = 860, 190, 150, 15, 18
FIRST_S, LAST_S = 0.01, 100.0
# The phases of a bar: where each begins, and how dark it is.
PHASES = (("detected", 0.25), ("stopped", 0.45), ("running", 0.65), ("first_step", 1.0))


class LogScale(NamedTuple):
    """Seconds on a horizontal axis; what is outside of it is at its end."""

    first: float
    last: float
    left: float
    right: float

    def x(self, at: float) -> float:
        scale = (self.right - self.left) / math.log10(self.last / self.first)
        return self.left + math.log10(min(max(at, self.first), self.last) / self.first) * scale


_SCALE = LogScale(FIRST_S, LAST_S, LEFT, WIDTH - RIGHT)


def text_at(x: float, y: float, text: str, kind: str) -> str:
    """A text of this class of the style."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def svg(results: Sequence[Result], launchers: Sequence[str], source: str) -> str:
    body, y = [], 40.0
    for scene, found in by_scene(results).items():
        body.append(text_at(12, y + 4, scene, "title"))
        for launcher in launchers:
            runs = found.get(launcher)
            if runs:
                body += _row(launcher, runs, y)
                y += ROW
        y += 8
    grid = []
    for power in range(round(math.log10(FIRST_S)), round(math.log10(LAST_S)) + 1):
        at = _SCALE.x(10.0**power)
        label = f"{10**power} s" if power >= 0 else f"{10 ** (power + 3)} ms"
        grid.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="28" y2="{y:.0f}" class="grid"/>')
        grid.append(text_at(at, 22, label, "tick"))
    legend = (
        "medians after the fault: until it is noticed, workers stopped, new ones run, first step; "
        "rings: the first step of each run"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 40:.0f}" '
            'role="img">',
            "<title>What launchers do after a fault, logarithmic scale</title>",
            f"<style>{_STYLE}</style>",
            *grid,
            *body,
            text_at(12, y + 14, legend, "source"),
            text_at(12, y + 30, source, "source"),
            "</svg>",
            "",
        ]
    )


def _row(launcher: str, runs: Sequence[Mapping[str, Any]], y: float) -> list[str]:
    color = COLORS.get(launcher, OTHER)
    parts = [text_at(LEFT - 8, y + 4, launcher, "name")]
    begin, end = FIRST_S, FIRST_S
    for phase, opacity in PHASES:
        at = median(runs, phase)
        if at is None:
            continue
        end = max(at, begin)
        width = max(1.0, _SCALE.x(end) - _SCALE.x(begin))
        parts.append(
            f'<rect x="{_SCALE.x(begin):.1f}" y="{y - 5:.1f}" width="{width:.1f}" height="11" '
            f'fill="{color}" fill-opacity="{opacity}"/>'
        )
        begin = end
    times = [run["first_step"] for run in runs if run["first_step"] is not None]
    parts += [
        f'<circle cx="{_SCALE.x(at):.1f}" cy="{y + 0.5:.1f}" r="2.5" class="run" stroke="{color}"/>'
        for at in times
    ]
    end = max([end, *times])
    verdict = outcome(runs).strip("*")
    kind = "good" if verdict == "ok" else "none" if verdict == NOT_APPLICABLE else "bad"
    text = verdict
    if kind == "good" and median(runs, "first_step") is None:
        text = "ok, no restart" if not any(run["codes"].get("0") for run in runs) else "ok, ends"
    parts.append(text_at(_SCALE.x(end) + 6, y + 4, text, kind))
    return parts


_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}"
    ".name{text-anchor:end;fill:#57606a}.tick{text-anchor:middle;fill:#57606a}"
    ".source{font-size:10px;fill:#57606a}.bad{fill:#cf222e;font-weight:600}.none{fill:#57606a}"
    ".grid{stroke:#d0d7de}.run{fill:none;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}"
    ".tick,.source,.name,.none{fill:#8b949e}.bad{fill:#ff7b72}.grid{stroke:#30363d}}"
)
