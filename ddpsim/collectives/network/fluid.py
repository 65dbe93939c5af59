"""A fluid network in SimPy: messages in flight share links max-min fair.

The network knows messages and links only. Rates change when a message joins or leaves; changes at one instant are
settled together, and only among the messages that share a link, directly or through others.

Invariant: of each flow `left_bytes` is what was left at `since_s`, at whatever rate since: `_advance` is called before
any rate or speed changes. A flow's timer is set at its rate; a changed rate sets another, and the old one wakes nobody.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import simpy
from simpy.events import EventPriority

from ddpsim.collectives.network.fairness import Demand, LinkId, max_min_rates, share_rates, slow_by_stall
from ddpsim.common.errors import TopologyError

__all__ = ["Demand", "LinkId", "Network", "max_min_rates"]

# After everything else that happens at an instant, so that simultaneous changes are settled once.
_LAST = EventPriority(2)


@dataclass(slots=True, eq=False)
class _Flow:
    demand: Demand
    done: simpy.Event
    left_bytes: float
    number: int
    sender: Hashable
    rate: float = 0.0
    since_s: float = 0.0
    start_s: float = 0.0
    timer: simpy.Event | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """What busy senders leave of the rates of their messages.

    Attributes:
        bytes: factor on the rate of bytes; latencies, stalls, and messages that load no link, keep their time.
        host: factor on `host_limit`, which threads at the ends keep up with; what waits for links more than for
            threads keeps its time.
    """

    bytes: float = 1.0
    host: float = 1.0


FULL = Speed()


class Network:
    """Links with capacities, which the messages in flight share.

    Args:
        env: the SimPy environment.
        capacities: bytes per second of each directed link.

    Raises:
        TopologyError: a capacity that is not positive.
    """

    def __init__(self, env: simpy.Environment, capacities: Mapping[LinkId, float]) -> None:
        self.env = env
        self.capacities: dict[LinkId, float] = {}
        self._on: dict[LinkId, dict[_Flow, None]] = {}
        self._moving: dict[_Flow, None] = {}
        self._dirty: list[_Flow] = []
        self._speeds: dict[Hashable, Speed] = {}
        self._count = 0
        self.add(capacities)

    def add(self, capacities: Mapping[LinkId, float]) -> None:
        """Add links; those that are there stay as they are.

        Raises:
            TopologyError: a capacity that is not positive.
        """
        for link, capacity in capacities.items():
            if not capacity > 0:
                raise TopologyError(f"link {link!r} has capacity {capacity!r} B/s", remedy="give one above zero")
            self.capacities.setdefault(link, capacity)
            self._on.setdefault(link, {})

    @property
    def in_flight(self) -> int:
        """Return how many messages are on links now, those still in their latency left out."""
        return len(self._moving)

    def set_speed(self, speed: Speed, sender: Hashable = None) -> None:
        """Let the messages of `sender`, in flight or to come, move at `speed`: less than full while it computes."""
        before = self._speeds.get(sender, FULL)
        if speed == before:
            return
        if not self._moving:
            self._speeds[sender] = speed
            return
        flows = [flow for flow in self._moving if flow.sender == sender]
        for flow in flows:
            self._advance(flow)
        self._speeds[sender] = speed
        for flow in flows:
            if speed.bytes != before.bytes:
                self._set_rate(flow, flow.rate)
            if speed.host != before.host and flow.demand.host_limit < math.inf:
                self._mark(flow)

    def transfer(self, demand: Demand, sender: Hashable = None) -> simpy.Event:
        """Send a message; the event succeeds when its last byte has arrived.

        Args:
            sender: whose speed it moves at; None is all ranks together.

        Raises:
            TopologyError: the demand loads a link this network lacks.
        """
        if not demand.loads.keys() <= self._on.keys():
            unknown = next(link for link in demand.loads if link not in self._on)
            raise TopologyError(f"no link {unknown!r} in the network")
        done = simpy.Event(self.env)
        if demand.latency_s > 0:
            simpy.Timeout(self.env, demand.latency_s).callbacks.append(lambda _: self._join(demand, done, sender))
        else:
            self._join(demand, done, sender)
        return done

    def _join(self, demand: Demand, done: simpy.Event, sender: Hashable) -> None:
        if demand.size_bytes <= 0:
            done.succeed()
            return
        if not demand.loads:
            self._finish_after(done, demand.size_bytes / demand.limit)
            return
        self._count += 1
        now = self.env.now
        flow = _Flow(demand, done, demand.size_bytes, self._count, sender, since_s=now, start_s=now)
        shared = False
        for link in demand.loads:
            flows = self._on[link]
            shared = shared or bool(flows)
            flows[flow] = None
        self._moving[flow] = None
        if shared:
            self._mark(flow)
        else:
            self._set_rate(flow, self._slow_demand(flow).unshared_rate(self.capacities))

    def _finish_after(self, done: simpy.Event, delay_s: float) -> None:
        def finish(_: simpy.Event) -> None:
            done.succeed()

        simpy.Timeout(self.env, delay_s).callbacks.append(finish)

    def _mark(self, flow: _Flow) -> None:
        """Settle, at the end of this instant, the messages that share a link with `flow`."""
        self._dirty.append(flow)
        if len(self._dirty) == 1:
            event = simpy.Event(self.env)
            event.callbacks.append(self._settle_last)
            event.succeed()

    def _settle_last(self, event: simpy.Event) -> None:
        """Let an event that has come come again, after all else that happens at its instant."""
        event.callbacks = [lambda _: self._settle()]
        self.env.schedule(event, priority=_LAST)

    def _settle(self) -> None:
        dirty, self._dirty = self._dirty, []
        seen: set[LinkId] = set()
        for link in dict.fromkeys(link for flow in dirty for link in flow.demand.loads):
            if link not in seen:
                self._share(self._component(link, seen))

    def _component(self, start: LinkId, seen: set[LinkId]) -> list[_Flow]:
        """Return the messages reachable from `start` through shared links, in order of arrival."""
        flows: dict[_Flow, None] = {}
        stack = [start]
        seen.add(start)
        while stack:
            for flow in self._on[stack.pop()]:
                if flow not in flows:
                    flows[flow] = None
                    for link in flow.demand.loads:
                        if link not in seen:
                            seen.add(link)
                            stack.append(link)
        return sorted(flows, key=lambda flow: flow.number)

    def _share(self, flows: list[_Flow]) -> None:
        if len(flows) == 1:
            rates = [self._slow_demand(flows[0]).unshared_rate(self.capacities)]
        else:
            rates = share_rates(
                [self._slow_demand(flow) for flow in flows], self.capacities, [flow.start_s for flow in flows]
            )
        for flow, rate in zip(flows, rates, strict=True):
            if not math.isclose(rate, flow.rate, rel_tol=1e-12):
                self._set_rate(flow, rate)

    def _slow_demand(self, flow: _Flow) -> Demand:
        """Return the flow's demand with its threads at the speed in force."""
        demand, factor = flow.demand, self._speeds.get(flow.sender, FULL).host
        if factor == 1.0 or demand.host_limit == math.inf:
            return demand
        return replace(demand, host_limit=demand.host_limit * factor)

    def _set_rate(self, flow: _Flow, rate: float) -> None:
        self._advance(flow)
        flow.rate = rate
        if rate == 0:  # not settled yet: this instant's end gives it a rate
            return
        timer = flow.timer = simpy.Timeout(self.env, flow.left_bytes / self._speed(flow))
        timer.callbacks.append(lambda event: self._leave(flow, event))

    def _advance(self, flow: _Flow) -> None:
        now = self.env.now
        flow.left_bytes = max(flow.left_bytes - self._speed(flow) * (now - flow.since_s), 0.0)
        flow.since_s = now

    def _speed(self, flow: _Flow) -> float:
        """Return bytes per second at the speed in force, which slows the bytes but not the stalls."""
        stall, factor = flow.demand.stall, self._speeds.get(flow.sender, FULL).bytes
        if not stall or factor == 1.0 or not flow.rate:
            return flow.rate * factor
        return slow_by_stall(factor / (1 / flow.rate - stall), stall)

    def _leave(self, flow: _Flow, timer: simpy.Event) -> None:
        if flow.timer is not timer:
            return
        del self._moving[flow]
        shared = False
        for link in flow.demand.loads:
            flows = self._on[link]
            del flows[flow]
            shared = shared or bool(flows)
        if shared:
            self._mark(flow)
        flow.done.succeed()
