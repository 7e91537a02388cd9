"""Draws the time until a job runs again, by launcher, from the JSON of ``bench/run.py``.

    python bench/run.py nodes warm --json result.json
    python bench/plot.py result.json recovery.svg

Each bar is a median on a logarithmic scale, the line in it goes from the shortest to the longest
time. A case that the run does not have is left out, and so is a launcher.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

# Scene, case (its first words), and what the picture calls it.
CASES = (
    ("nodes", "2 agents with 2 workers each, one killed", "a worker is killed: all run again"),
    ("nodes", "2:3 job, an agent and its workers killed", "a node is lost: the others run again"),
    ("warm", "digits, 2 workers, one killed", "a worker is killed: first training step"),
)
COLORS = {"elastic --warm": "#1a7f37", "elastic": "#2da44e", "torchrun": "#bf8700"}
OTHER = "#57606a"
WIDTH, LEFT, RIGHT, ROW, BAR = 760, 270, 90, 20, 14


class Bar(NamedTuple):
    subject: str
    low: float
    median: float  # milliseconds
    high: float


def cases(result: dict[str, Any]) -> dict[str, list[Bar]]:
    """The bars of each case of the picture that the run has."""
    found: dict[str, list[Bar]] = {}
    for scene, case, title in CASES:
        for row in result["scenes"].get(scene, {}).get("rows", []):
            if row["case"].startswith(case) and row["unit"] == "ms":
                bar = Bar(row["subject"], row["min"], row["median"], row["max"])
                found.setdefault(title, []).append(bar)
    return found


def svg(result: dict[str, Any]) -> str:
    groups = cases(result)
    if not groups:
        raise SystemExit("plot: the run has none of the cases: run the scenes nodes and warm")
    bars = [bar for group in groups.values() for bar in group]
    first = math.floor(math.log10(min(bar.low for bar in bars)))
    last = math.ceil(math.log10(max(bar.high for bar in bars)))
    scale = (WIDTH - LEFT - RIGHT) / (last - first)

    def x(milliseconds: float) -> float:
        return LEFT + (math.log10(milliseconds) - first) * scale

    body, y = [], 24
    for title, group in groups.items():
        body.append(_text(12, y + 4, title, "title"))
        y += ROW + 2
        for bar in group:
            color = COLORS.get(bar.subject, OTHER)
            body.append(_text(LEFT - 10, y + 4, bar.subject, "name"))
            body.append(
                f'<rect x="{LEFT}" y="{y - BAR / 2 + 0.5:.1f}" height="{BAR}" rx="2" '
                f'width="{max(2.0, x(bar.median) - LEFT):.1f}" fill="{color}"/>'
            )
            body.append(
                f'<line x1="{x(bar.low):.1f}" x2="{x(bar.high):.1f}" y1="{y}" y2="{y}" '
                'class="range"/>'
            )
            end = max(x(bar.high), x(bar.median)) + 6
            body.append(_text(end, y + 4, _duration(bar.median), "value"))
            y += ROW
        y += 10
    grid = []
    for power in range(first, last + 1):
        at = x(10.0**power)
        grid.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="12" y2="{y}" class="grid"/>')
        grid.append(_text(at, y + 16, _duration(10.0**power), "tick"))
    height = y + 46
    facts = result["machine"]
    source = (
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load average'].split()[0]}; "
        f"PyTorch {facts['torch']}; {facts['date'][:10]}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            "<title>Time until a job runs again after a failure, logarithmic scale</title>",
            f"<style>{_STYLE}</style>",
            *grid,
            *body,
            _text(12, height - 6, source, "source"),
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _duration(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    return f"{milliseconds:.3g} ms"


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}"
    ".name{text-anchor:end}.tick{text-anchor:middle;fill:#57606a}.source{font-size:10px;"
    "fill:#57606a}.grid{stroke:#d0d7de}.range{stroke:#24292f;stroke-width:1.5;opacity:.6}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick,.source{fill:#8b949e}"
    ".grid{stroke:#30363d}.range{stroke:#e6edf3}}"
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path, help="the JSON of bench/run.py")
    parser.add_argument("picture", type=Path, help="the SVG file that is written")
    given = parser.parse_args(arguments)
    given.picture.write_text(svg(json.loads(given.result.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
