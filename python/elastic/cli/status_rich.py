"""``status`` on a terminal, set by the package rich where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from elastic.cli import status_view
from elastic.cli.status_view import BAD, GOOD, WARN, Rows

STYLES = {GOOD: "bold green", BAD: "bold red", WARN: "yellow"}
INCIDENTS_LIVE = 5  # the latest ones; the others have no room beside the nodes
MARGIN_LINES = 3


def open_console(environ: Mapping[str, str]) -> Any:
    """rich's console for stdout; None: it is no terminal, or there is no rich.

    The console itself heeds NO_COLOR and TERM.
    """
    if not sys.stdout.isatty() or environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)


def render(snapshot: dict[str, Any], height: int | None = None, note: str = "") -> Any:
    """The state of the job. ``height``: as many lines of a live view; None: all of it."""
    from rich.console import Group
    from rich.text import Text

    state, tone = status_view.state_of(snapshot)
    title = Text.assemble(
        ("job ", "dim"), (snapshot["job"], "bold"), "  ", (state, STYLES.get(tone, "bold")),
        (f"  at {status_view.clock(snapshot['time'])}", "dim"),
    )  # fmt: skip
    facts = status_view.facts(snapshot)
    incidents = status_view.incident_rows(snapshot)
    nodes = status_view.node_rows(snapshot)
    more = ""
    if height is not None:
        incidents = incidents[-INCIDENTS_LIVE:]
        taken = len(facts) + len(incidents) + 2 * MARGIN_LINES + bool(note)
        nodes, more = _fitting(nodes, max(1, height - taken))
    parts: list[Any] = [title, _grid(facts), "", _table(status_view.NODE_HEADER, nodes, state=3)]
    if more:
        parts.append(Text(more, "dim"))
    if incidents:
        parts += ["", _table(status_view.INCIDENT_HEADER, incidents, state=2)]
    if note:
        parts.append(Text(note, STYLES[WARN]))
    return Group(*parts)


def listing(rows: Rows) -> Any:
    """The jobs of this host; the first row is the header."""
    return _table(rows[0], rows[1:], state=4)


def _fitting(rows: Rows, count: int) -> tuple[Rows, str]:
    """The rows that fit, those that are not as usual first, and a line about the others."""
    if len(rows) <= count:
        return rows, ""
    unusual = [one for one in rows if one[3] != "working"]
    usual = [one for one in rows if one[3] == "working"]
    return (unusual + usual)[: count - 1], f"and {len(rows) - count + 1} nodes more"


def _grid(facts: Sequence[status_view.Fact]) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for one in facts:
        grid.add_row(Text(f"  {one.label}", "dim"), Text(one.text, STYLES.get(one.tone, "")))
    return grid


def _table(header: Sequence[str], rows: Rows, state: int) -> Any:
    """``state``: the column whose cells are coloured by the state that they name."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(header):
        is_last = number == len(header) - 1
        made.add_column(name, no_wrap=not is_last, overflow="fold" if is_last else "ellipsis")
    for row in rows:
        cells = [Text(cell) for cell in row]
        cells[state].stylize(_style_of(row[state]))
        made.add_row(*cells)
    return made


def _style_of(word: str) -> str:
    if word in ("working", "running", "succeeded"):
        return "green"
    return "red" if word in ("HUNG", "failed", "worker failed", "node lost") else "yellow"
