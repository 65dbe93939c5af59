"""Spreads of collectives from errors on tables, and how bands of them do on sites that had no part.

Sites count alike, and a site's tables, and a table's rows: what is asked is how far off the next site will be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpsim.prediction.doubts.spreads import COLLECTIVES, LATENCY_BOUND, SLOW_HOST, find_collective_spread
from studies.accuracy.residuals import Row

Vector = npt.NDArray[np.float64]

LOW, HIGH = 0.1, 0.9
POOL = 2.0
"""Sites that all classes together count as beside a class's own: few sites say little of the next one."""
LEAST = 0.03
APART = "kalavai"
"""A site where host memory is reached several times more slowly than on all others: its own case, with its own band
(`ddpsim.prediction.doubts.spreads.SLOW_HOST`), and no part of its family's."""


@dataclass(frozen=True)
class Judged:
    """Bands on rows whose sites had no part in them.

    Attributes:
        inside: whether each row is.
        widths: upper less lower end, over the prediction.
        coverage, score, width: share inside, mean interval score of logarithms, median width; sites count alike.
        constant_score, constant_width: of the best band of constant relative width, fitted to these very rows.
    """

    rows: tuple[Row, ...]
    inside: npt.NDArray[np.bool_]
    widths: Vector
    coverage: float
    score: float
    width: float
    constant_score: float
    constant_width: float


def klass(row: Row) -> str:
    """Return the class of a row: rows of one class share a spread (`ddpsim.prediction.doubts.spreads.COLLECTIVES`)."""
    return find_collective_spread(row.family, row.latency_share).name


def spreads(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return by class the 10th and 90th percentile of errors, drawn towards those of all rows where sites are few."""
    together = _ends(rows)
    found = {}
    for name in dict.fromkeys(spread.name for pair in COLLECTIVES.values() for spread in pair):
        own = [row for row in rows if klass(row) == name and row.site != APART]
        sites = len({row.site for row in own})
        ends = _ends(own) if own else together
        low, high = ((sites * e + POOL * t) / (sites + POOL) for e, t in zip(ends, together, strict=True))
        found[name] = min(low, -LEAST), max(high, LEAST)
    return found


def judge(rows: Sequence[Row], known: Sequence[Row]) -> Judged:
    """Return how bands do on `rows`, each site's from the rows of all other sites in `known`; `APART` is left out."""
    rows = [row for row in rows if row.site != APART]
    ends: dict[str, Mapping[str, tuple[float, float]]] = {
        site: spreads([row for row in known if row.site != site]) for site in {row.site for row in rows}
    }
    low, high = np.array([ends[row.site][klass(row)] for row in rows]).T
    errors, weights = np.array([row.error for row in rows]), _weights(rows)
    inside = (errors >= low) & (errors <= high)
    flat_low, flat_high = (quantile(errors, weights, share) for share in (LOW, HIGH))
    widths = np.exp(high) - np.exp(low)
    return Judged(
        tuple(rows),
        inside,
        widths,
        float((inside * weights).sum()),
        float((interval_score(low, high, errors) * weights).sum()),
        quantile(widths, weights, 0.5),
        float((interval_score(flat_low, flat_high, errors) * weights).sum()),
        float(np.exp(flat_high) - np.exp(flat_low)),
    )


def apart(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many rows of `APART` that bandwidth bounds are inside its own band, and how many there are."""
    errors = [row.error for row in rows if row.site == APART and row.latency_share < LATENCY_BOUND]
    return sum(SLOW_HOST.low <= error <= SLOW_HOST.high for error in errors), len(errors)


def judge_families(rows: Sequence[Row]) -> dict[str, Judged]:
    """Return by family how bands do on its rows, beside the best constant band of those rows alone."""
    names = sorted({row.family for row in rows})
    return {name: judge([row for row in rows if row.family == name], rows) for name in names}


def interval_score(low: Vector | float, high: Vector | float, errors: Vector) -> Vector:
    """Return the interval score of an 80 % band: its width, and ten times what a value lies outside.

    Winkler (1972); Gneiting and Raftery (2007), equation 43.
    """
    outside = np.maximum(low - errors, 0) + np.maximum(errors - high, 0)
    return np.asarray(high - low + 2 / (1 - HIGH + LOW) * outside)


def quantile(values: Vector, weights: Vector, share: float) -> float:
    """Return a weighted quantile, linear between the middles of the weights."""
    order = np.argsort(values, kind="stable")
    heaped = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share * weights.sum(), heaped, values[order]))


def _ends(rows: Sequence[Row]) -> tuple[float, float]:
    errors, weights = np.array([row.error for row in rows]), _weights(rows)
    return quantile(errors, weights, LOW), quantile(errors, weights, HIGH)


def _weights(rows: Sequence[Row]) -> Vector:
    """Return weights that sum to 1: sites alike, a site's tables alike, a table's rows alike."""
    tables: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for row in rows:
        tables.setdefault(row.site, set()).add(row.table)
        counts[row.table] = counts.get(row.table, 0) + 1
    return np.array([1 / len(tables) / len(tables[row.site]) / counts[row.table] for row in rows])
