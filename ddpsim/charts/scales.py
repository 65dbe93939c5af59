"""Values of an axis that are labelled: round steps, and 1, 2 and 5 of each power of ten."""

from __future__ import annotations

import math

LEGIBLE = 3
"""Powers of ten up to which 2 and 5 of each are labelled too."""


def decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each power of ten between the ends; powers alone where those are many.

    >>> decades(3, 60), decades(0.5, 5e4)
    ([5.0, 10.0, 20.0, 50.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if math.log10(high / low) <= LEGIBLE else (1,)
    return [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]


def log_ticks(low: float, high: float) -> list[float]:
    """Return `decades`, or round steps between the ends where fewer than three of those lie there.

    >>> log_ticks(100, 130)
    [100.0, 110.0, 120.0, 130.0]
    """
    found = decades(low, high)
    return found if len(found) >= 3 else [value for value in round_steps(low, high) if low <= value <= high]


def round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers from below `low` to above `high`.

    >>> round_steps(8, 31)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    spread = high - low or abs(high) * 0.1 or 1.0
    low, high = low - 0.04 * spread if low > 0.04 * spread else min(low, 0.0), high + 0.04 * spread
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, last + 1)]
