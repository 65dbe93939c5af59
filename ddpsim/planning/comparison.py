"""The result of `ddpsim.planning.compare`: a row for each machine, rate, node count and model, and which is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.common.markup import SCREEN
from ddpsim.common.tables import table_of
from ddpsim.common.units import format_count
from ddpsim.planning.advice import Advice
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.goal import RateGoal
from ddpsim.planning.ranking import list_rankable


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison holds its rows by machine, link rate, workload, node count and cap, in the order asked for.

    Attributes:
        rows: all of them.
        goal: what the cheapest has to meet; None where nothing was asked for.
        advice: of each machine, where it was asked for.
    """

    rows: tuple[ComparisonRow, ...]
    goal: RateGoal | None = None
    advice: tuple[Advice, ...] = ()

    def __repr__(self) -> str:
        return f"<Comparison: {format_count(len(self.rows), 'row')}, best {self.best!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row a machine, rate, node count and model."""
        return table_of("compare", [row.describe() for row in self.rows]).html(SCREEN)

    @property
    def models(self) -> tuple[str, ...]:
        """The models compared; rows of different ones say nothing of each other."""
        return tuple(dict.fromkeys(row.model for row in self.rows))

    @property
    def best(self) -> ComparisonRow | None:
        """The best row of the only model; None where there are several."""
        return self.best_of(self.models[0]) if len(self.models) == 1 else None

    def best_of(self, model: str) -> ComparisonRow | None:
        """Return the best row of `model`; None where no row may be ranked, as none is at its machine's own pace.

        Where prices and a goal are given it is the cheapest that meets the goal, with prices alone the one whose
        million samples cost least, else the one with the most samples a second; the fewest ranks among equals. One that
        does not fit its GPUs is best only where none fits.
        """
        rows = self.list_ranked(model)
        fitting = [row for row in rows if row.fits is not False] or rows
        if self.goal is not None:
            fitting = [row for row in fitting if self.goal.is_met_by(row.samples_per_s[0])] or fitting

        def rank(row: ComparisonRow) -> tuple[float, float, int]:
            cost = row.per_million_samples
            rate = row.samples_per_s[0]
            return (-rate if cost is None else cost[0], -rate, row.ranks)

        priced = [row for row in fitting if row.price is not None]
        return min(priced or fitting, key=rank, default=None)

    def list_ranked(self, model: str) -> list[ComparisonRow]:
        """Return the rows of `model` that a verdict may name: those at the pace of their machine's own GPU."""
        return list_rankable(self.of(model), lambda row: row.prediction)

    def rivals(self, model: str) -> tuple[str, ...]:
        """Return the machines whose band overlaps with that of the best row of `model`: between them all is open.

        The bands are of what a million samples cost where prices are given, else of samples a second.
        """
        best, others = self.best_of(model), self.list_ranked(model)
        others = [row for row in others if row.fits is not False] or others
        if best is None:
            return ()
        if self.goal is not None:
            others = [row for row in others if self.goal.is_met_by(row.samples_per_s[0])]
        cost = best.per_million_samples
        if cost is None:
            near = [row for row in others if row.samples_per_s[2] > best.samples_per_s[1]]
        else:
            near = [row for row in others if (own := row.per_million_samples) is not None and own[1] < cost[2]]
        return tuple(dict.fromkeys(row.machine for row in near if row.machine != best.machine))

    def of(self, model: str) -> tuple[ComparisonRow, ...]:
        """Return the rows of `model`."""
        return tuple(row for row in self.rows if row.model == model)

    def pareto(self, model: str) -> list[ComparisonRow]:
        """Return the rows of `model` that no other beats in both cost and speed, the fastest first."""
        return sorted((row for row in self.of(model) if row.pareto), key=lambda row: -row.samples_per_s[0])

    def records(self) -> list[dict[str, object]]:
        """Return the rows of the `compare` document, each flat, for `pandas.DataFrame`."""
        return [row.record() for row in self.rows]

    def document(self) -> dict[str, object]:
        """Return the `compare` document."""
        best_rows = {model: self.best_of(model) for model in self.models}
        best = {model: None if row is None else row.document() for model, row in best_rows.items()}
        return {
            "rows": [row.document() for row in self.rows],
            "best": next(iter(best.values())) if len(best) == 1 else None,
            "best_by_model": best,
            "goal": None if self.goal is None else self.goal.document(),
            "break_even": [each.document() for advice in self.advice for each in advice.break_even],
            "placement": [advice.apart.document() for advice in self.advice if advice.apart is not None],
            "no_sync": [each.document() for advice in self.advice for each in advice.accumulating],
        }


def find_undominated(rows: Sequence[ComparisonRow]) -> list[bool]:
    """Return for each row whether no other is as fast or faster and costs no more for a sample, and is better in one.

    Rows without a price, those that do not fit their GPUs, and those at another GPU's pace are not in question.
    """
    ranked = {id(row) for row in list_rankable(rows, lambda row: row.prediction) if row.fits is not False}
    points = [
        None if id(row) not in ranked or (cost := row.per_million_samples) is None else (cost[0], -row.samples_per_s[0])
        for row in rows
    ]
    known = [point for point in points if point is not None]

    def beaten(point: tuple[float, float]) -> bool:
        return any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in known)

    return [point is not None and not beaten(point) for point in points]
