"""Ranks whose computing times differ by chance: from device to device, and from iteration to iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ddpsim.jobs.simulated import Options
from ddpsim.simulation.pace import Pace

Factors = NDArray[np.float64]


def factors_of(options: Options, ranks: Sequence[int], world_size: int, iterations: int) -> Factors | None:
    """Return the factor on computing time by rank of `ranks` and iteration; None where nothing varies.

    The draw of a rank depends on its number and the seed alone, not on who is simulated as whom.
    """
    straggling = options.straggling_drawn
    if straggling is None and options.jitter == 0:
        return None
    factors = np.ones((len(ranks), iterations))
    if straggling is not None:
        everybody = straggling.factors(np.random.default_rng([options.seed, 2]), world_size)
        factors *= everybody[list(ranks), None]
    if options.jitter > 0:
        drawn = [np.random.default_rng([options.seed, 3, rank]).standard_normal(iterations) for rank in ranks]
        factors *= np.exp(options.jitter * np.stack(drawn))
    return factors


def varied(pace: Callable[[int], Pace], factors: Factors | None, *, one_clock: bool) -> Callable[[int], Pace]:
    """Return `pace` times the largest of the ranks' factors in each iteration.

    What a collective waits for is the last rank. The largest factor on the largest time at each gradient is that rank's
    where recorded iterations are alike, and no less where they differ.

    Args:
        factors: by rank and iteration; None leaves the pace as it is.
        one_clock: whether the host's time is the computation.
    """
    if factors is None:
        return pace
    most = factors.max(axis=0)

    def scaled(iteration: int) -> Pace:
        factor = float(most[iteration])
        return pace(iteration).scaled(factor, factor if one_clock else 1.0)

    return scaled
