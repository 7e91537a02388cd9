"""The results as Markdown for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from harness.figures import Findings


def number(value: float) -> str:
    """Three significant digits or more, without an exponent."""
    for limit, digits in ((0.1, 4), (1, 3), (100, 2), (1000, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}".replace(",", " ")


def markdown_of_machine(facts: dict[str, str]) -> str:
    lines = ["| machine | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(lines)


def markdown_of_scene(name: str, findings: Findings) -> str:
    lines = ["", f"### {name}", "", *_rows(findings), *_targets(findings)]
    lines += [f"\nNot measured: {who}: {why}" for who, why in findings.skipped.items()]
    return "\n".join(lines)


def _rows(findings: Findings) -> list[str]:
    if not findings.rows:
        return []
    lines = [
        "| case | subject | min | **median** | max | unit | n |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for row in findings.rows.values():
        low, middle, high = min(row.samples), row.median(), max(row.samples)
        lines.append(
            f"| {row.case} | {row.subject} | {number(low)} | **{number(middle)}** | {number(high)} "
            f"| {row.unit} | {len(row.samples)} |"
        )
    return lines


def _targets(findings: Findings) -> list[str]:
    if not findings.targets:
        return []
    lines = ["", "| target | limit | value | |", "| --- | ---: | ---: | --- |"]
    for target in findings.targets:
        sign = "≥" if target.at_least else "≤"
        limit, value = number(target.limit), number(target.value)
        verdict = "met" if target.met() else "**missed**"
        lines.append(f"| {target.claim} | {sign} {limit} | {value} | {verdict} |")
    return lines


def as_json(facts: dict[str, str], scenes: dict[str, Findings]) -> dict[str, Any]:
    return {
        "machine": facts,
        "scenes": {
            name: {
                "rows": [
                    {
                        "case": row.case,
                        "subject": row.subject,
                        "unit": row.unit,
                        "min": min(row.samples),
                        "median": row.median(),
                        "max": max(row.samples),
                        "samples": row.samples,
                    }
                    for row in findings.rows.values()
                ],
                "targets": [
                    {
                        "claim": target.claim,
                        "at_least": target.at_least,
                        "limit": target.limit,
                        "value": target.value,
                        "met": target.met(),
                    }
                    for target in findings.targets
                ],
                "skipped": findings.skipped,
            }
            for name, findings in scenes.items()
        },
    }
