"""Gloo under PyTorch: a ring over TCP, in segments, two of them in flight, reduced by the CPU."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import pairwise

from ddpsim.collectives import schedules
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.gloo.ways import GlooWays, Hop
from ddpsim.collectives.patterns import PATTERNS
from ddpsim.collectives.routes import Wiring
from ddpsim.collectives.transport import Choice, Connection, Lane, Steps, alone_s
from ddpsim.errors import InputError
from ddpsim.jobs.collective import DEFAULT, CollectiveOptions
from ddpsim.network.fairness import Demand, LinkId
from ddpsim.topology.graph import Placement
from ddpsim.units import MIB

_MAX_SEGMENT_BYTES = MIB


class GlooTransport:
    """Predicts gloo's collectives on a placement.

    Args:
        placement: ranks in ring order, node by node.
        calibration: constants; the priors where None.
        options: whose algorithm may be `ring`, which `auto` is too.
    """

    backend = "gloo"
    streams_per_group = 2
    hops: Collection[str] = ()

    def __init__(
        self,
        placement: Placement,
        calibration: Calibration | None = None,
        options: CollectiveOptions = DEFAULT,
    ) -> None:
        if options.algorithm not in ("auto", "ring"):
            known = f"use {', '.join(('auto', 'ring', *PATTERNS[:-1]))} or {PATTERNS[-1]}"
            raise InputError(f"gloo has no algorithm {options.algorithm!r}", place="algorithm", remedy=known)
        self.calibration = calibration or Calibration.priors("gloo")
        self._wiring = Wiring(placement, options.expand)
        self._ways = GlooWays(self._wiring, self.calibration)
        self._ranks = placement.world_size
        self._hops = self._ring()
        self.capacities: Mapping[LinkId, float] = {each.name: each.link.bandwidth for hop in self._hops for each in hop}

    def choice(self, size_bytes: int) -> Choice:
        """Return the ring, always."""
        return Choice("ring", "tcp")

    def allreduce(self, size_bytes: int) -> Demand:
        """Return launch and staging, then 2(p-1)/p of the bytes on every hop, with the handshakes that show.

        Threads woken at each step work beside the bytes: whichever is slower sets the rate.
        """
        if self._ranks == 1 or size_bytes == 0:
            return Demand(self._ways.start_s(size_bytes), 0, {})
        share = 2 * (self._ranks - 1) / self._ranks
        loads = {link: share * load for link, load in self._ring_loads().items()}
        steps = 2 * (self._ranks - 1)
        return Demand(
            self._ways.start_s(size_bytes),
            size_bytes,
            loads,
            rate_limit=self._reduced_rate() / share,
            host_limit=size_bytes / (steps * self.calibration["gloo.step_s"]),
            stall_s=steps * max(self._handshakes_s(hop, size_bytes) for hop in self._hops),
            queue="pair" if self._ranks == 2 else None,
            behind=max(0.0, 1 - 2 * self._ranks / self._segments(size_bytes)),
        )

    def allreduce_s(self, size_bytes: int) -> float:
        """Return the time of an allreduce with nothing else in flight."""
        return alone_s(self.allreduce(size_bytes), self.capacities)

    def broadcast(self, size_bytes: int) -> Demand:
        """Return the root's part in a binomial tree: log2(p) sends of the whole message, one after the other."""
        if self._ranks == 1 or size_bytes == 0:
            return Demand(self._ways.start_s(size_bytes), 0, {})
        rounds = math.ceil(math.log2(self._ranks))
        loads = {link: rounds * load for link, load in self._ways.loads(self._hops[-1]).items()}
        return Demand(self._ways.start_s(size_bytes) + rounds * self._step_s(), size_bytes, loads)

    def steps(self, size_bytes: int) -> Steps:
        """Return the ring's segments one by one; where one node stands for all, its part of them."""
        if self._ranks == 1 or size_bytes == 0:
            return Steps(self._ways.start_s(size_bytes), ())
        if len(self._hops) < self._ranks and not self._wiring.uniform:
            return GlooTransport(
                self._wiring.placement, self.calibration, options=CollectiveOptions(expand=True)
            ).steps(size_bytes)
        segments = self._segments(size_bytes)
        steps = 2 * (self._ranks - 1)
        if len(self._hops) == self._ranks:
            schedule = schedules.ring(self._ranks, segments // self._ranks)
        else:
            schedule = schedules.periodic_ring(len(self._hops), steps, segments // self._ranks)
        connections = [self._segment_connection(hop, size_bytes, segments // self._ranks) for hop in self._hops]
        lane = Lane(schedule, size_bytes / segments, lambda source, _: connections[source])
        return Steps(self._ways.start_s(size_bytes), (lane,), self.capacities)

    def _segments(self, size_bytes: float) -> int:
        wanted = max(math.ceil(size_bytes / _MAX_SEGMENT_BYTES), 2 * self._ranks)
        return math.ceil(wanted / self._ranks) * self._ranks

    def _handshakes_s(self, hop: Hop, size_bytes: int) -> float:
        """Return how long a step's segments wait for the receiver's ready messages, nothing else in flight.

        The first two of a step, in flight together, wait for one round trip: the ready message's way and their own. The
        window then lets one segment go for each that came, when its ready message is there: one way each. Behind
        another collective's segments only the first round trip of a step shows. Measured on shaped links, torch 2.13,
        beyond the wire's time at 95.6 % of the link: two ranks, 5 ms one way: 21 ms up to 4 MiB (4 segments), 54 to 68
        for 16 MiB (16), 255 for 64 MiB, two of 8 MiB at once 10 to 38 ms; four ranks, 1 ms:
        14 ms up to 4 MiB (8 segments), 22 for 16 MiB, 57 to 72 for 64 MiB.
        """
        return self._ways.round_trip_s(hop) / 2 * self._segments(size_bytes) / self._ranks

    def _segment_connection(self, hop: Hop, size_bytes: int, segments_a_step: int) -> Connection:
        """Return the way of one segment, with its part of a step's handshakes, and the rate of sums and threads."""
        step_bytes = size_bytes / self._ranks
        return Connection(
            self._handshakes_s(hop, size_bytes) / segments_a_step,
            self._ways.loads(hop),
            rate_limit=self._reduced_rate(),
            host_limit=step_bytes / self.calibration["gloo.step_s"],
        )

    def _reduced_rate(self) -> float:
        """Return the bytes per second of a hop that the ranks' sums keep up with.

        A segment is summed while the next comes in; half of what a hop carries, the reduce-scatter, is summed.
        """
        return 2 * self.calibration["gloo.reduce.bandwidth"]

    def _step_s(self) -> float:
        """Return the time of a step without bytes: a round trip, and threads woken at both ends."""
        return max(map(self._ways.hop_s, self._hops))

    def _ring(self) -> list[Hop]:
        """Return the hop from each rank to the next; of the nodes that stand for all, where they do."""
        hops: list[Hop] = []
        placement = self._wiring.placement
        following = dict(self._wiring.boundaries)
        for node in self._wiring.nodes:
            ranks = placement.gpus(placement.class_of(node))
            hops += [self._ways.inside(node, *pair) for pair in pairwise(ranks)]
            if node in following:
                hops.append(self._ways.across(node, following.pop(node)))
            elif placement.nodes == 1 and len(ranks) > 1:
                hops.append(self._ways.inside(node, ranks[-1], ranks[0]))
        return hops + [self._ways.across(*boundary) for boundary in following.items()]

    def _ring_loads(self) -> dict[LinkId, float]:
        """Return bytes on each link for a byte that goes around.

        A node sends to one other, so links between nodes are loaded once whatever kinds of boundaries it has.
        """
        inside: dict[LinkId, float] = {}
        between: dict[LinkId, float] = {}
        for hop in self._hops:
            for each, (link, load) in zip(hop, self._ways.loads(hop).items(), strict=True):
                if each.link.kind in ("nic", "network"):
                    between[link] = load
                else:
                    inside[link] = inside.get(link, 0.0) + load
        return inside | between
