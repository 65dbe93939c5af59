"""Differences between schemes of one job, published and predicted: what a choice of scheme rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from studies.published.gpu_steps import Judged

DIFFERENCE, STEP = 0.15, 0.02
"""In reach: an error of so much of the difference, or of the longer step; rows that differ by more have an order."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair is two rows of one job that differ in their scheme, the slower first."""

    slower: Judged
    faster: Judged

    @property
    def measured_s(self) -> float:
        """By how much the second's step was shorter."""
        return self.slower.measured_s - self.faster.measured_s

    @property
    def predicted_s(self) -> float:
        """By how much it is predicted to be."""
        return self.slower.predicted_s - self.faster.predicted_s

    @property
    def in_reach(self) -> bool:
        """Whether the difference is right to 15 % of it, or to 2 % of the step."""
        off = abs(self.predicted_s - self.measured_s)
        return off <= max(DIFFERENCE * self.measured_s, STEP * self.slower.measured_s)

    @property
    def telling(self) -> bool:
        """Whether the rows differ by more than 2 % of the step."""
        return self.measured_s > STEP * self.slower.measured_s

    @property
    def in_order(self) -> bool:
        """Whether the faster is predicted to be."""
        return self.predicted_s > 0


def pairs(rows: Sequence[Judged]) -> Iterator[tuple[str, list[Pair]]]:
    """Yield the pairs of each job of a system that has schemes, with the job's name."""
    if not rows or not rows[0].system.schemes:
        return
    system = rows[0].system
    column = system.columns["scheme"]

    def job(row: Judged) -> tuple[str, ...]:
        return tuple(row.row[name] for name in system.group)

    for name, group in groupby(sorted(rows, key=job), key=job):
        ordered = sorted(group, key=lambda row: -row.measured_s)
        found = [Pair(a, b) for a, b in combinations(ordered, 2) if a.row[column] != b.row[column]]
        if found:
            yield " ".join(name), found
