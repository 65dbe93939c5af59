"""Weighted max-min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

LinkId = Hashable


@dataclass(frozen=True, slots=True)
class Demand:
    """What one message asks of the network.

    Attributes:
        latency_s: time before the first byte moves; takes no link.
        size_bytes: bytes of the message.
        loads: bytes put on each link per byte of the message; a link at load 2 sees every byte twice.
        rate_limit: message bytes per second the ends can do, whatever the links allow.
        weight: share of a link relative to other messages (parallel connections).
    """

    latency_s: float
    size_bytes: float
    loads: Mapping[LinkId, float]
    rate_limit: float = math.inf
    weight: float = 1.0
    peak_load: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if any(load <= 0 for load in self.loads.values()):
            raise ValueError(f"loads must be positive, got {dict(self.loads)!r}")
        object.__setattr__(self, "peak_load", max(self.loads.values(), default=1.0))

    def alone(self, capacities: Mapping[LinkId, float]) -> float:
        """Return the rate in message bytes per second with nothing else in flight."""
        return min((capacities[link] / load for link, load in self.loads.items()), default=math.inf)


def max_min_rates(demands: Sequence[Demand], capacities: Mapping[LinkId, float]) -> list[float]:
    """Return the weighted max-min fair rate of each demand, in message bytes per second.

    What is made fair is the traffic a demand puts on its most loaded link: two messages of equal weight that share a
    link get equal parts of it, however many times each crosses it. Every rate ends at its limit or at a full link on
    which no other demand has a larger fair share.
    """
    rates = [0.0] * len(demands)
    left = {link: capacities[link] for demand in demands for link in demand.loads}
    growing = {index: demand.weight / demand.peak_load for index, demand in enumerate(demands)}
    level = 0.0
    while growing:
        speed = _speeds(demands, growing)
        next_level, full = _next_level(demands, growing, left, speed, level)
        for link in speed:
            left[link] -= speed[link] * (next_level - level)
        level = next_level
        for index in [i for i in growing if _stops(demands[i], growing[i] * level, full)]:
            rates[index] = min(growing.pop(index) * level, demands[index].rate_limit)
    return rates


def _speeds(demands: Sequence[Demand], growing: Mapping[int, float]) -> dict[LinkId, float]:
    """Return how fast each link fills while the growing demands rise together."""
    speed: dict[LinkId, float] = {}
    for index, slope in growing.items():
        for link, load in demands[index].loads.items():
            speed[link] = speed.get(link, 0.0) + slope * load
    return speed


def _next_level(
    demands: Sequence[Demand],
    growing: Mapping[int, float],
    left: Mapping[LinkId, float],
    speed: Mapping[LinkId, float],
    level: float,
) -> tuple[float, set[LinkId]]:
    """Return the level at which the next demand stops, and the links that are full there."""
    room = {link: level + max(left[link], 0.0) / value for link, value in speed.items()}
    limit = min((demands[i].rate_limit / slope for i, slope in growing.items()), default=math.inf)
    at = min(limit, min(room.values(), default=math.inf))
    return at, {link for link, full_at in room.items() if full_at <= at * (1 + 1e-12)}


def _stops(demand: Demand, rate: float, full: set[LinkId]) -> bool:
    return rate >= demand.rate_limit * (1 - 1e-12) or any(link in full for link in demand.loads)
