"""Weighted max-min fair rates by progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import truediv

LinkId = Hashable


@dataclass(frozen=True, slots=True)
class Demand:
    """What one message asks of the network.

    Attributes:
        latency_s: time before the first byte moves; takes no link.
        size_bytes: bytes of the message.
        loads: bytes put on each link per byte of the message; a link at load 2 sees every byte twice.
        rate_limit: message bytes per second the ends can do, whatever the links allow.
        host_limit: message bytes per second that threads of the ends keep up with, woken at each step; busy processors
            lower it.
        queue: names the queue in which its stalls wait with the bytes of others that name it, as where one connection
            carries them all: such stalls come together. None: no queue.
        behind: share of its stalls that passes behind the bytes of others, where there are any.
        peak_load: the largest of `loads`.
        limit: message bytes per second the ends can do, their threads included.
        weight: share of a link relative to other messages (parallel connections).
        stall_s: time without bytes on links, spread evenly over the message: latencies between its steps.
        hops: kinds of hops a chunk meets, as part of all, with the room each has over the tightest: 2 where the links
            there carry twice as much. By them the queue at a tight hop hides some stalls.
    """

    latency_s: float
    size_bytes: float
    loads: Mapping[LinkId, float]
    rate_limit: float = math.inf
    weight: float = 1.0
    stall_s: float = 0.0
    hops: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    host_limit: float = math.inf
    queue: Hashable | None = None
    behind: float = 0.0
    peak_load: float = field(init=False, repr=False, compare=False)
    limit: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if any(load <= 0 for load in self.loads.values()):
            raise ValueError(f"loads must be positive, got {dict(self.loads)!r}")
        object.__setattr__(self, "peak_load", max(self.loads.values(), default=1.0))
        object.__setattr__(self, "limit", min(self.rate_limit, self.host_limit))

    @property
    def stall(self) -> float:
        """Return seconds stalled per message byte."""
        return self.stall_s / self.size_bytes if self.stall_s else 0.0

    def unshared_rate(self, capacities: Mapping[LinkId, float]) -> float:
        """Return the rate with nothing else in flight, within the limit and stalls included."""
        return slow_by_stall(min(self.alone_rate(capacities), self.limit), self.stall)

    def free(self, capacities: Mapping[LinkId, float]) -> float:
        """Return the rate between stalls with nothing else in flight."""
        return min(self.alone_rate(capacities), self.limit)

    def alone_rate(self, capacities: Mapping[LinkId, float]) -> float:
        """Return the rate in message bytes per second with nothing else in flight."""
        rooms = map(capacities.__getitem__, self.loads)
        return min(map(truediv, rooms, self.loads.values()), default=math.inf)


def alone_s(demand: Demand, capacities: Mapping[LinkId, float]) -> float:
    """Return the time of `demand` with nothing else in flight."""
    return demand.latency_s + demand.size_bytes / demand.unshared_rate(capacities)


def slow_by_stall(rate: float, stall: float) -> float:
    """Return the rate in bytes per second of what moves at `rate` and stands still for `stall` seconds a byte."""
    return 1 / (stall + 1 / rate) if stall else rate


def share_rates(
    demands: Sequence[Demand], capacities: Mapping[LinkId, float], starts_s: Sequence[float] | None = None
) -> list[float]:
    """Return the rate of each demand in message bytes per second, those that stall leaving the links to others then.

    A chunk's way around takes its stalls and its time on every hop, others meeting it there for as much of the time as
    they are on the links by themselves (the arrival theorem of mean value analysis: Reiser and Lavenberg 1980). Two
    alike that started at one instant, by `starts_s`, keep in step and meet every time, and so do those in one `queue`.
    At a hop tighter than the others chunks queue, which hides stalls: no rate is above the max-min fair one either. So
    does another's traffic the share `behind`.
    """
    if not any(demand.stall_s for demand in demands):
        return max_min_rates(demands, capacities)
    # First what each has as if its stalls were a limit on its rate: the upper bound. Then each that stalls, beside the
    # others as present on the links as they are by themselves: its chunks' time around gives its rate.
    unshared = [demand.unshared_rate(capacities) for demand in demands]
    rates = max_min_rates(
        [replace(demand, rate_limit=rate) for demand, rate in zip(demands, unshared, strict=True)], capacities
    )
    present = [
        replace(demand, weight=demand.weight * rate / demand.free(capacities))
        for demand, rate in zip(demands, unshared, strict=True)
    ]
    since = starts_s or range(len(demands))
    gaits = [(start, demand.size_bytes, demand.stall_s) for start, demand in zip(since, demands, strict=True)]
    for index, demand in enumerate(demands):
        if demand.stall_s:
            others = [
                whole if gaits[other] == gaits[index] or _shares_queue(demand, whole) else part
                for other, (whole, part) in enumerate(zip(demands, present, strict=True))
            ]
            others[index] = demand
            met = max_min_rates(others, capacities)[index]
            shown = replace(demand, stall_s=demand.stall_s * (1 - demand.behind))
            rates[index] = min(rates[index], _find_ring_rate(shown, met, capacities))
    return rates


def _shares_queue(one: Demand, other: Demand) -> bool:
    return one.queue is not None and one.queue == other.queue


def _find_ring_rate(demand: Demand, met: float, capacities: Mapping[LinkId, float]) -> float:
    """Return the rate at which chunks go around when the tightest hop gives them `met`."""
    free = demand.free(capacities)
    return slow_by_stall(1 / sum(part / min(free, met * room) for part, room in demand.hops), demand.stall)


def max_min_rates(demands: Sequence[Demand], capacities: Mapping[LinkId, float]) -> list[float]:
    """Return the weighted max-min fair rate of each demand, in message bytes per second.

    What is made fair is the traffic a demand puts on its most loaded link: two messages of equal weight that share a
    link get equal parts of it, however many times each crosses it. Every rate ends at its limit or at a full link on
    which no other demand has a larger fair share.
    """
    # Progressive filling: all demands rise together, each by its `growing` a unit of `level`, until one comes to its
    # limit or a link is full; those stop, and the others go on.
    rates = [0.0] * len(demands)
    growing = {index: demand.weight / demand.peak_load for index, demand in enumerate(demands)}
    limited = {index: demands[index].limit / slope for index, slope in growing.items()}
    on: dict[LinkId, dict[int, float]] = {}
    for index, demand in enumerate(demands):
        slope = growing[index]
        for link, load in demand.loads.items():
            if link in on:
                on[link][index] = slope * load
            else:
                on[link] = {index: slope * load}
    left = {link: capacities[link] for link in on}
    speed = {link: _sum(there.values()) for link, there in on.items()}  # how fast links fill while all rise together
    level = 0.0
    while growing:
        full_at = {link: level + (room if (room := left[link]) > 0.0 else 0.0) / value for link, value in speed.items()}
        first_limited = min(limited.values())
        next_level = min(first_limited, min(full_at.values(), default=math.inf))
        for link, value in speed.items():
            left[link] -= value * (next_level - level)
        level = next_level
        # Tolerances are of rounding, by which a demand would stop a hair later, in a step that moves nothing.
        stops: set[int] = set()
        if first_limited <= level * (1 + 1e-9):  # else none is near its limit
            stops = {i for i, slope in growing.items() if slope * level >= demands[i].limit * (1 - 1e-12)}
        full = level * (1 + 1e-12)
        stops.update(*(on[link] for link, at in full_at.items() if at <= full))
        for index in stops:
            rates[index] = min(growing.pop(index) * level, demands[index].limit)
            del limited[index]
        _leave(on, speed, stops, demands)
    return rates


def _leave(
    on: Mapping[LinkId, dict[int, float]], speed: dict[LinkId, float], stops: set[int], demands: Sequence[Demand]
) -> None:
    """Take the demands that stop off their links; only there the speed changes."""
    slower: set[LinkId] = set()
    for index in stops:
        for link in demands[index].loads:
            del on[link][index]
            slower.add(link)
    for link in slower:
        if on[link]:
            speed[link] = _sum(on[link].values())
        else:
            del speed[link]


def _sum(values: Iterable[float]) -> float:
    """Return the sum from left to right: the built-in one rounds otherwise from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total
