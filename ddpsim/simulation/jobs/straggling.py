"""Distributions of ranks' computing times, where some straggle and it is not known which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddpsim.common.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Factors = NDArray[np.floating[Any]]
    Draw = Callable[[np.random.Generator, int], Factors]


@dataclass(frozen=True, slots=True)
class StragglerDistribution:
    """A distribution of factors on ranks' computing times; the median rank's is about 1.

    `lognormal:S`: the logarithm's standard deviation is S, as of devices of one model, 0.02 to 0.08 between GPUs of
    clusters (Sinha et al., "Not All GPUs Are Created Equal", SC 2022). `exponential:M`: 1 and an exponential of mean M,
    as shared hosts delay (Lee et al., IEEE Trans. Inf. Theory 2018, take such a shift). `pareto:A`: a heavy tail of
    index A from 1 on (Dean and Barroso, "The Tail at Scale", 2013, show such). `some:SHARE:FACTOR`: each rank with
    chance SHARE is FACTOR times slower.

    Attributes:
        text: as it was asked for.
    """

    text: str
    _draw: Draw

    @classmethod
    def of(cls, text: str) -> StragglerDistribution:
        """Return the distribution that `text` names.

        Raises:
            UnknownNameError: no such distribution.
            InputError: other than its number of parameters, or one out of range.
        """
        name, *values = text.split(":")
        if name not in _KINDS:
            raise UnknownNameError.among("distribution", name, _KINDS, place="straggling")
        example, make = _KINDS[name]
        try:
            numbers = [float(value) for value in values]
            draw = make(*numbers)
        except (TypeError, ValueError):
            what, remedy = f"{text!r} is no distribution with its parameters", f"write e.g. {example}"
            raise InputError(what, place="straggling", remedy=remedy) from None
        return cls(text, draw)

    def factors(self, rng: np.random.Generator, count: int) -> Factors:
        """Return the factors of `count` ranks."""
        return self._draw(rng, count)


def _check_above(low: float, value: float, high: float = 1e3) -> float:
    if not low < value <= high:
        raise ValueError
    return value


def _lognormal(spread: float) -> Draw:
    sigma = _check_above(0, spread, 3)
    return lambda rng, count: rng.lognormal(0.0, sigma, count)


def _exponential(mean: float) -> Draw:
    scale = _check_above(0, mean)
    return lambda rng, count: 1 + rng.exponential(scale, count)


def _pareto(index: float) -> Draw:
    shape = _check_above(1, index)
    return lambda rng, count: 1 + rng.pareto(shape, count)


def _some(share: float, factor: float) -> Draw:
    chance, slower = _check_above(0, share, 1), _check_above(0, factor)
    return lambda rng, count: 1.0 + (slower - 1.0) * (rng.random(count) < chance).astype(float)


_KINDS: Mapping[str, tuple[str, Callable[..., Draw]]] = {
    "lognormal": ("lognormal:0.03", _lognormal),
    "exponential": ("exponential:0.05", _exponential),
    "pareto": ("pareto:3", _pareto),
    "some": ("some:0.01:1.5", _some),
}
"""Name to an example, and to what makes it of its parameters."""
