"""What a doubt is: one cause of error, as the two ends between which 80 % of what it leaves open lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddpsim.collectives.calibration import Calibration

WireFactor = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a simulated run takes as given, beside its workload, machine and options.

    Attributes:
        calibration: constants in force; None is the priors.
        wire_factor: factor on the time of a collective by its bytes; None is 1.
        compute, host: factors on device time and on host time.
    """

    calibration: Calibration | None = None
    wire_factor: WireFactor | None = None
    compute: float = 1.0
    host: float = 1.0


@dataclass(frozen=True, slots=True)
class Doubt:
    """One cause of error, independent of all others.

    Attributes:
        name: of the cause, in a few words.
        remedy: the measurement that removes it.
        low, high: conditions at the 10th and the 90th percentile of the cause; None where they are those predicted.
        left: share of the doubt that stays when its remedy has been done.
    """

    name: str
    remedy: str
    low: Assumptions | None
    high: Assumptions | None
    left: float = 0.0


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
