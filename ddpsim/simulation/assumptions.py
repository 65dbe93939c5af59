"""What a simulated run takes as given, beside its workload, machine and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddpsim.collectives.calibration import Calibration

WireFactor = Callable[[int], float]
"""Factor on the time of a collective by its bytes."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a simulated run takes as given.

    Attributes:
        calibration: constants in force; None is the priors.
        wire_factor: factor on the time of a collective by its bytes; None is 1.
        compute, host: factors on device time and on host time.
        silent: whether collectives end where they begin, as with `comm=noop`.
    """

    calibration: Calibration | None = None
    wire_factor: WireFactor | None = None
    compute: float = 1.0
    host: float = 1.0
    silent: bool = False
