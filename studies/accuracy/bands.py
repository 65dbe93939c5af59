"""How often measured times are inside the bands of predictions, and how wide those are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpsim.calibrating.fitting import Vector
from studies.accuracy.cases import Errors


@dataclass(frozen=True)
class Band:
    """An 80 % band on one system's rows.

    Attributes:
        inside: whether each row is.
        widths: upper over lower edge, of each row.
        baseline_inside, baseline_width: of one quantile for all rows.
    """

    system: str
    sizes: tuple[int, ...]
    inside: NDArray[np.bool_]
    widths: Vector
    baseline_inside: float
    baseline_width: float


def bands(held_out: Sequence[Errors]) -> list[Band]:
    """Return bands of as many doubts as other systems' held-out rows need, beside one global quantile of theirs."""
    rows = []
    for errors in held_out:
        others = [each for each in held_out if each.system != errors.system]
        residuals = np.concatenate([_residuals(each) for each in others])
        own, doubts = _residuals(errors), _doubts(errors)
        edges = np.outer(
            doubts, np.percentile(residuals / np.concatenate([_doubts(each) for each in others]), [10, 90])
        )
        low, high = np.percentile(residuals, [10, 90])
        rows.append(
            Band(
                errors.system,
                errors.sizes,
                (own >= edges[:, 0]) & (own <= edges[:, 1]),
                np.exp(edges[:, 1] - edges[:, 0]),
                float(((own >= low) & (own <= high)).mean()),
                float(np.exp(high - low)),
            )
        )
    return rows


def stated(errors: Errors) -> Band:
    """Return the bands that the predictions themselves came with."""
    assert errors.band is not None
    own, edges = _residuals(errors), np.log(errors.band)
    inside = (own >= edges[:, 0]) & (own <= edges[:, 1])
    return Band(errors.system, errors.sizes, inside, np.exp(edges[:, 1] - edges[:, 0]), np.nan, np.nan)


def scores(held_out: Sequence[Errors]) -> Vector:
    """Return 10th and 90th percentile of held-out residuals over doubts, all systems together."""
    pooled = [_residuals(errors) / _doubts(errors) for errors in held_out]
    return np.asarray(np.percentile(np.concatenate(pooled), [10, 90]))


def _residuals(errors: Errors) -> Vector:
    """Return log(measured / predicted)."""
    return np.asarray(-np.log1p(errors.columns["ddpsim"]))


def _doubts(errors: Errors) -> Vector:
    assert errors.doubts is not None
    return errors.doubts
