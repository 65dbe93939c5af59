"""What a doubt is: one cause of error, as two ends between which the truth lies in 80 % of cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddpsim.common.documents.fields import WRITTEN
from ddpsim.simulation.communication import Assumptions


@dataclass(frozen=True, slots=True)
class Doubt:
    """One cause of error, independent of all others.

    Attributes:
        name: of the cause, in a few words.
        remedy: the measurement that removes it.
        low, high: assumptions at the 10th and the 90th percentile of the cause; None where they are those predicted.
        left: share of the doubt that stays when its remedy has been done.
    """

    name: str
    remedy: str
    low: Assumptions | None
    high: Assumptions | None
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """A step at the two ends of a doubt.

    Attributes:
        name, remedy, left: of the doubt.
        steps_s: the step at its low and at its high end.
        factors: on device time and on host time, at either end.
        retimed, simulated: how many of its ends were found by retiming the run's graph, and by another simulation.
        loads: factors on what loading a batch takes, at either end.
    """

    name: str
    remedy: str
    left: float
    steps_s: tuple[float, float]
    factors: tuple[tuple[float, float], tuple[float, float]]
    retimed: Annotated[int, WRITTEN] = 0
    simulated: Annotated[int, WRITTEN] = 0
    loads: Annotated[tuple[float, float], WRITTEN] = (1.0, 1.0)

    @classmethod
    def of(cls, doubt: Doubt, steps_s: tuple[float, float], *, retimed: int = 0) -> Ends:
        """Return the step at the ends of `doubt`, so many of which were retimed."""
        ends = sum(end is not None for end in (doubt.low, doubt.high))
        low, high = ((1.0, 1.0) if end is None else (end.compute, end.host) for end in (doubt.low, doubt.high))
        loads = (1.0 if doubt.low is None else doubt.low.input, 1.0 if doubt.high is None else doubt.high.input)
        return cls(doubt.name, doubt.remedy, doubt.left, steps_s, (low, high), retimed, ends - retimed, loads)


Cause = Doubt | Ends
"""What names a cause of error, with its remedy and the share that this leaves: all that `join.effect` needs."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a doubt does to one number.

    Attributes:
        name, remedy, left: of the doubt.
        low, high: the number at the 10th and the 90th percentile of this doubt alone.
    """

    name: str
    remedy: str
    low: float
    high: float
    left: float = 0.0

    @property
    def width(self) -> float:
        """Distance of the ends."""
        return self.high - self.low

    def document(self) -> dict[str, object]:
        """Return the effect on a time as JSON values."""
        return {"name": self.name, "low_s": self.low, "high_s": self.high, "remedy": self.remedy}
