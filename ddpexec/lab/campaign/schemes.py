"""What a campaign shows of schemes: how well the step of each is predicted, and whether the best is foretold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from ddpexec.lab.campaign.results import Result, group_results

ALIKE = 0.01
"""Of a step; schemes that differ by less are as good as each other."""


@dataclass(frozen=True, slots=True)
class SchemeErrors:
    """Errors of the predicted step over the configurations of one scheme, as shares of the measured step."""

    scheme: str
    count: int
    median: float
    p95: float
    signed: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The schemes of one family, predicted beside measured.

    Attributes:
        predicted, measured: the scheme of the shortest step on either side.
        regret: by how much the predicted best is measured to be slower than the measured best.
        pairs: of schemes whose measured steps differ by more than `ALIKE`.
        right: of these, that are predicted in the measured order.
    """

    family: str
    predicted: str
    measured: str
    regret: float
    pairs: int
    right: int


def errors_by_scheme(results: Sequence[Result]) -> list[SchemeErrors]:
    """Return the errors of each scheme, in the order in which schemes come first."""
    return [_errors(scheme, group) for scheme, group in group_results(results, "scheme").items()]


def rankings(results: Sequence[Result]) -> list[Ranking]:
    """Return a ranking of each family that ran more than one scheme."""
    families = group_results(results, "family")
    return [_rank(family, group) for family, group in families.items() if len(group) > 1]


def _errors(scheme: str, group: Sequence[Result]) -> SchemeErrors:
    signed = [result.error for result in group]
    absolute = list(map(abs, signed))
    p95 = float(np.percentile(absolute, 95))
    return SchemeErrors(scheme, len(group), median(absolute), p95, median(signed), min(signed), max(signed))


def _rank(family: str, group: Sequence[Result]) -> Ranking:
    foretold = min(group, key=lambda result: result.predicted_s)
    best = min(group, key=lambda result: result.step_s)
    apart = [
        (one, other)
        for one, other in combinations(sorted(group, key=lambda result: result.step_s), 2)
        if other.step_s > one.step_s * (1 + ALIKE)
    ]
    right = sum(one.predicted_s < other.predicted_s for one, other in apart)
    regret = foretold.step_s / best.step_s - 1
    return Ranking(family, foretold.scheme, best.scheme, regret, len(apart), right)
