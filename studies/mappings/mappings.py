"""The page of published mappings: each step measured and predicted, the order of mappings, and the two halves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from studies.mappings.predicting import CLUSTERS, is_pace, pace_at, predicted_s
from studies.mappings.rows import Row, judging, rows

REACH = 0.20
"""Within which a step is to be predicted."""

_APART = 0.02
"""Steps of two mappings that differ by less are in no order: repeated ones differ by up to 4 %."""


@dataclass(frozen=True, slots=True)
class Found:
    """A published step and its prediction.

    Attributes:
        says_pace: whether the pace of its series was taken from it, so that it judges nothing.
    """

    row: Row
    predicted_s: float
    says_pace: bool = False

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.row.step_s - 1


def by_series() -> dict[str, list[Row]]:
    """Return the rows that are predicted, by series in the order of their names."""
    each = [row for row in rows() if row.cluster in CLUSTERS]
    return {name: [row for row in each if row.series == name] for name in sorted({row.series for row in each})}


def predict_series(own: Sequence[Row]) -> list[Found]:
    """Return each row of a series with its prediction."""
    pace = pace_at(CLUSTERS[own[0].cluster])
    return [Found(row, predicted_s(row, pace), is_pace(row)) for row in own]


def pairs(own: Sequence[Found]) -> tuple[int, int]:
    """Return how many pairs of mappings of a series are predicted in the measured order, and how many there are.

    >>> from studies.mappings.rows import Model
    >>> model = Model(1024, 24, 16, 51200, 1024)
    >>> measured = {8: 1.0, 4: 2.0, 2: 1.01}
    >>> made = [Row("s", "c", 8, model, data, 8 // data, 1, 1, 1, 8, step_s) for data, step_s in measured.items()]
    >>> pairs([Found(row, predicted_s) for row, predicted_s in zip(made, (1.0, 1.5, 1.2))])
    (2, 2)
    """
    apart = [
        (one, other)
        for one, other in combinations(own, 2)
        if one.row.model == other.row.model
        and one.row.mapping != other.row.mapping
        and abs(one.row.step_s / other.row.step_s - 1) > _APART
    ]
    right = [(o.row.step_s < p.row.step_s) == (o.predicted_s < p.predicted_s) for o, p in apart]
    return sum(right), len(right)


HEAD = """# Mappings, measured and predicted

Written by `python -m studies.mappings`; sources stand in `studies/mappings/steps/steps.csv`. A mapping is ranks of
data x tensor x stages. DLPerf's and the SuperPOD's steps are predicted at the pace of their cluster's step on one
GPU (`pace`), and nothing else is fitted. Pairs are two mappings of one series and model whose steps differ by more
than 2 %.
"""


def lines(found: Sequence[Sequence[Found]]) -> Iterator[str]:
    """Yield the tables: the halves by cluster, then every row."""
    judges = judging(rows())
    yield "| cluster | half | steps | median error | largest | within 20 % | pairs in the measured order |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for cluster in CLUSTERS:
        for half in ("judging", "choosing"):
            own = [each for each in found if each[0].row.cluster == cluster]
            own = [each for each in own if (each[0].row.series in judges) == (half == "judging")]
            told = [one for each in own for one in each if not one.says_pace]
            if told:
                errors = [abs(one.error) for one in told]
                worst = max(told, key=lambda one: abs(one.error)).error
                orders = [pairs(each) for each in own]
                right, count = (sum(order[k] for order in orders) for k in (0, 1))
                within = f"{sum(error <= REACH for error in errors)} of {len(errors)}"
                cells = (cluster, half, str(len(told)), f"{median(errors):.1%}", f"{worst:+.1%}", within)
                yield "| " + " | ".join(cells) + f" | {right} of {count} |"
    yield ""
    yield "| series | half | mapping | measured, s | predicted, s | error |"
    yield "|---|---|---|--:|--:|--:|"
    for each in found:
        for one in each:
            half = "judging" if one.row.series in judges else "choosing"
            error = "pace" if one.says_pace else f"{one.error:+.1%}"
            shown = (one.row.series, half, one.row.mapping, f"{one.row.step_s:.3f}", f"{one.predicted_s:.3f}", error)
            yield "| " + " | ".join(shown) + " |"


def text() -> str:
    """Return the page."""
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(predict_series, by_series().values()))
    return "\n".join([HEAD, *lines(found), ""])
