"""What a simulated run takes as given, beside its workload, machine and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddpsim.collectives.calibration import Calibration
from ddpsim.topology.graph import Placement
from ddpsim.topology.link_rates import with_faster_links

WireFactor = Callable[[int], float]
"""Factor on the time of a collective by its bytes."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a simulated run takes as given.

    Attributes:
        calibration: constants in force; None is the priors.
        wire_factor: factor on the time of a collective by its bytes; None is 1.
        compute, host: factors on device time and on host time.
        latency: factor on the time of collectives in which none of their bytes are on links.
        links, link_rate: kinds of links, as `ddpsim.topology.link_rates` names them, and the factor on their rates.
        silent: whether collectives end where they begin, as with `comm=noop`.
    """

    calibration: Calibration | None = None
    wire_factor: WireFactor | None = None
    compute: float = 1.0
    host: float = 1.0
    silent: bool = False
    latency: float = 1.0
    links: frozenset[str] = frozenset()
    link_rate: float = 1.0

    def on(self, placement: Placement) -> Placement:
        """Return `placement` with its links' rates as they are assumed."""
        return with_faster_links(placement, self.links, self.link_rate) if self.links else placement
