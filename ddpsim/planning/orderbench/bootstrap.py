"""Intervals of the difference of two replays of the same steps, by resampling blocks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 10
"""Steps that are drawn together, so that what carries over from one to the next stays: chosen by hand."""
DRAWS = 1000
"""Resamples; their 5th and 95th percentiles move by less than a tenth of the interval from seed to seed."""
ENDS = (5, 95)
"""Percentiles of the interval's ends: 90 % of it lies between."""


def relative_difference(
    steps: NDArray[np.float64], base: NDArray[np.float64], seed: int = 0, centre: Callable[..., Any] = np.mean
) -> tuple[float, float, float]:
    """Return by what share of `base` the mean, or another `centre`, of `steps` is longer, and its interval's ends.

    Both hold the same steps, so that they are drawn in pairs: blocks of consecutive ones that begin anywhere and go on
    at the start (the circular block bootstrap of Politis and Romano, 1992).
    """
    count = len(steps)
    length = min(BLOCK, count)
    rng = np.random.default_rng([seed, count])
    begins = rng.integers(count, size=(DRAWS, -(-count // length)))
    places = ((begins[:, :, None] + np.arange(length)) % count).reshape(DRAWS, -1)[:, :count]
    drawn = centre(steps[places], axis=1) / centre(base[places], axis=1) - 1
    low, high = np.percentile(drawn, ENDS)
    return float(centre(steps) / centre(base) - 1), float(low), float(high)
