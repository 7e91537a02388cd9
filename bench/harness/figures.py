"""Figures of one scene: samples of all subjects, skipped subjects, and whether targets are met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


class Missing(Exception):
    """A program or module that a subject needs is missing; the message names it."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One subject's samples of one case."""

    case: str
    subject: str
    unit: str
    samples: list[float] = field(default_factory=list)

    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit for medians of the same run."""

    claim: str
    value: float
    limit: float
    at_least: bool

    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(slots=True)
class Findings:
    """The results of a scene. Rows keep the order in which they first appeared."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, case: str, subject: str, unit: str, value: float) -> None:
        row = self.rows.setdefault((case, subject), Row(case=case, subject=subject, unit=unit))
        row.samples.append(value)

    def skip(self, subject: str, reason: object) -> None:
        self.skipped[subject] = str(reason)

    def has(self, case: str, *subjects: str) -> bool:
        return all((case, subject) in self.rows for subject in subjects)

    def median(self, case: str, subject: str) -> float:
        return self.rows[case, subject].median()

    def median_ratio(self, case: str, subject: str, rival: str) -> float:
        """The median of the ratios of samples that were taken one after the other."""
        pairs = zip(self.rows[case, subject].samples, self.rows[case, rival].samples, strict=True)
        return statistics.median(own / other for own, other in pairs)

    def at_most(self, claim: str, value: float, limit: float) -> None:
        self.targets.append(Target(claim=claim, value=value, limit=limit, at_least=False))

    def at_least(self, claim: str, value: float, limit: float) -> None:
        self.targets.append(Target(claim=claim, value=value, limit=limit, at_least=True))


def quantile(sample: Sequence[float], rank: float) -> float:
    """The value at `rank` (0.5: the median, roughly) of a sample that need not be sorted."""
    ordered = sorted(sample)
    return ordered[int(rank * (len(ordered) - 1))]
