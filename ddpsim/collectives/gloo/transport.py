"""Gloo under PyTorch: a ring over TCP, in segments, two of them in flight, reduced by the CPU.

As torch runs them (`ProcessGroupGloo.cpp`): a reduce-scatter is an allreduce of a copy, of which a rank keeps its part;
an all-gather goes around the ring into memory of its own and is copied out; a broadcast is a binomial tree of whole
messages; a reduce sums around the ring and sends every part to the root; sends and receives are messages by themselves.

Read `GlooTransport.demand` first. Before it stand gloo's own schedules of the operations other than an allreduce.

Sources: `gloo/allgather.cc`, `gloo/reduce.cc`, `gloo/broadcast.cc`. Between two ranks one connection carries both
directions, in order: the message by which a rank says that it is ready to receive waits behind what that rank is
sending, so that two large messages go one after the other. Measured on a link of 200 Mbit/s, torch 2.13, 1 to 8 MiB
each way: `isend` and `irecv` take 2.0 times one message in three of four tries and once in the rest, with a group for
each sender 1.0 to 1.1; an all-gather 1.5 times one rank's part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

from ddpsim.collectives import schedules
from ddpsim.collectives.all_to_all import AllToAll
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import DEFAULT, CollectiveOptions
from ddpsim.collectives.host_paths import Hop, HostPaths
from ddpsim.collectives.network.fairness import Demand, LinkId, alone_s
from ddpsim.collectives.patterns import refuse_unknown_algorithm
from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.schedules import Builder, ChannelSchedule, Connection, Steps, Transfer, TransferSchedule
from ddpsim.collectives.transport import AlgorithmChoice, Transport
from ddpsim.collectives.transport_priors import GLOO_PRIORS
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.topology.graph import Placement

EARLIER_WEIGHT = 1.5
"""Share of the root's link that each message has beside the one started after it, all whole and all at once.

Chosen on 8 ranks over links of 200 Mbit/s, torch 2.13: a broadcast of 0.5 to 4 MiB takes 4.6 to 5.6 times one message;
even shares would take 6, one message after the other 3, this 4.8. Judged on 4 ranks: 2.5 to 2.9, this 2.7.
"""


def exchange() -> TransferSchedule:
    """Return two ranks' messages to each other on one connection: one after the other."""
    return TransferSchedule(2, 1, (Transfer(0, 1, 0, 1, False, ()), Transfer(1, 0, 0, 1, False, (0,))))


def build_pair_all_gather() -> TransferSchedule:
    """Return an all-gather of two ranks, each part in two segments: the first goes alone, the last too."""
    first, back = Transfer(0, 1, 0, 1, False, ()), Transfer(1, 0, 2, 3, False, (0,))
    return TransferSchedule(2, 4, (first, back, Transfer(0, 1, 1, 2, False, ()), Transfer(1, 0, 3, 4, False, ())))


def count_exchanged(*, gather: bool) -> float:
    """Return what one direction of the connection waits for, in bytes for a byte of the message, of those schedules."""
    return 0.75 if gather else 2.0


def binomial(ranks: int) -> TransferSchedule:
    """Return a broadcast from rank 0 of the whole message: rank r sends to r + 1, r + 2, r + 4, ... at once, those
    above the number's own highest bit."""
    builder = Builder(ranks, 1)
    for source, target, _ in _sends(ranks):
        builder.send(source, target, 0, 1, reduce=False)
    return builder.build()


def binomial_weights(ranks: int) -> dict[tuple[int, int], float]:
    """Return the share of its source's link that each message of the tree has beside the others."""
    return {(source, target): EARLIER_WEIGHT**-order for source, target, order in _sends(ranks)}


def binomial_sent(ranks: int) -> float:
    """Return the time until the last rank has the message, in times of one message on a link."""
    sends: dict[int, list[tuple[int, int]]] = {}
    for source, target, order in _sends(ranks):
        sends.setdefault(source, []).append((order, target))
    has = {0: 0.0}
    for source in range(ranks):
        now, left = has[source], dict.fromkeys(sends.get(source, []), 1.0)
        while left:
            total = sum(EARLIER_WEIGHT**-order for order, _ in left)
            rates = {each: EARLIER_WEIGHT ** -each[0] / total for each in left}
            passed = min(rest / rates[each] for each, rest in left.items())
            now += passed
            left = {each: rest - passed * rates[each] for each, rest in left.items()}
            has |= {target: now for (_, target), rest in left.items() if rest < 1e-9}
            left = {each: rest for each, rest in left.items() if rest >= 1e-9}
    return max(has.values())


def build_reduce(ranks: int, segments: int) -> TransferSchedule:
    """Return a reduce to rank 0: sums of segments around the ring, then every rank's part straight to rank 0.

    All but two of the message's segments go around, (p-1)/p of it only where each part is two of them.
    """
    builder, part = Builder(ranks, segments), segments // ranks
    for step in range(segments - 2):
        for rank in range(ranks):
            # Gloo's ring sends to the rank before, ours to the one after.
            chunk = ((-rank % ranks + 1) * part + step) % segments
            builder.send(rank, (rank + 1) % ranks, chunk, chunk + 1, reduce=True)
    for rank in range(1, ranks):
        own = -rank % ranks * part
        builder.send(rank, 0, own, own + part, reduce=False)
    return builder.build()


def _sends(ranks: int) -> list[tuple[int, int, int]]:
    """Return (source, target, which of the source's own) of a binomial tree from rank 0, in the order they start."""
    bits = (ranks - 1).bit_length()
    sends, own = [], [0] * ranks
    for bit in range(bits):
        for source in range(min(1 << bit, ranks)):
            if (target := source + (1 << bit)) < ranks:
                sends.append((source, target, own[source]))
                own[source] += 1
    return sends


class GlooPaths(HostPaths):
    """Finds the ways that gloo's messages take between ranks of a placement, a handshake before each."""

    backend = "gloo"
    streams_per_group = 2


_MAX_SEGMENT_BYTES = MIB


class GlooTransport(Transport):
    """Predicts gloo's collectives on a placement.

    Args:
        placement: ranks in ring order, node by node.
        calibration: constants; the priors where None.
        options: whose algorithm may be `ring`, which `auto` is too.
    """

    backend = "gloo"
    streams_per_group = 2
    hops: Mapping[str, float] = MappingProxyType({})

    def __init__(
        self,
        placement: Placement,
        calibration: Calibration | None = None,
        options: CollectiveOptions = DEFAULT,
    ) -> None:
        refuse_unknown_algorithm("gloo", options.algorithm, ("ring",))
        self.calibration = calibration or Calibration.priors("gloo")
        self._wiring = PlacementLinks(placement, options.expand)
        self._ways = GlooPaths(self._wiring, self.calibration)
        self._ranks = placement.world_size
        self._rings = options.rings
        self._hops = self._ring()
        self.capacities: Mapping[LinkId, float] = {each.name: each.link.bandwidth for hop in self._hops for each in hop}

    def choice(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> AlgorithmChoice:
        """Return the ring, always, except of a broadcast, which is a tree, and an all-to-all, each pair by itself."""
        if operation is Operation.ALL_TO_ALL:
            return AlgorithmChoice("pairs", "tcp")
        return AlgorithmChoice("tree" if operation is Operation.BROADCAST else "ring", "tcp")

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return launch, staging and copies, then the bytes of every hop, with the handshakes that show.

        Threads woken at each step work beside the bytes: whichever is slower sets the rate.
        """
        if operation is Operation.ALL_TO_ALL:
            return self._all_to_all.demand(size_bytes)
        start_s = self._ways.start_s(size_bytes) + self._copies_s(operation, size_bytes)
        if self._ranks == 1 or size_bytes == 0:
            return Demand(start_s, 0, {})
        if operation is Operation.BROADCAST:
            return self._tree(size_bytes)
        if operation is Operation.REDUCE:
            return self._reduce(size_bytes)
        # What moves the bytes may be another operation: torch's reduce-scatter over gloo is an allreduce.
        around = self._resolve_operation(operation)
        steps, share = around.steps(self._ranks), around.sent(self._ranks)
        cut = around is Operation.ALLREDUCE or (self._rings and around.in_parts)
        segments = self._segments(size_bytes) / self._ranks if cut else 2
        limit, turns = self._reduced_rate() if around.reduces else math.inf, 1.0
        # Two ranks on one connection send in turn, each behind the other's message: `turns` times as long.
        if self._uses_one_connection(around):
            turns = count_exchanged(gather=around.in_parts) / share
            limit = self._hop_rate() / turns
        return Demand(
            start_s,
            size_bytes,
            {link: share * load for link, load in self._ring_loads().items()},
            rate_limit=limit / share,
            host_limit=size_bytes / (turns * steps * self.calibration["gloo.step_s"]),
            stall_s=turns * steps * max(self._handshakes_s(hop, segments) for hop in self._hops),
            queue="pair" if self._ranks == 2 else None,
            behind=max(0.0, 1 - 2 / segments),
        )

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the time of an operation with nothing else in flight."""
        return alone_s(self.demand(operation, size_bytes), self.capacities)

    @cached_property
    def _all_to_all(self) -> AllToAll:
        ways = GlooPaths(PlacementLinks(self._wiring.placement, expand=True), self.calibration)
        return AllToAll(ways, self._ranks, self.capacities, in_turn=True)

    def _tree(self, size_bytes: int) -> Demand:
        """Return the root's part in a binomial tree: log2(p) sends of the whole message, all at once.

        The last rank has the message when each on its way there has sent it on beside its other sends.
        """
        rounds, depth = (self._ranks - 1).bit_length(), max(each.bit_count() for each in range(self._ranks))
        loads = {link: rounds * load for link, load in self._ways.loads(self._hops[-1]).items()}
        rate = self._hop_rate() / binomial_sent(self._ranks)
        return Demand(self._ways.start_s(size_bytes) + depth * self._step_s(), size_bytes, loads, rate)

    def _reduce(self, size_bytes: int) -> Demand:
        """Return the segments that go around, and then the parts that the root takes from all others at once."""
        segments = self._segments(size_bytes)
        around, straight = (segments - 2) / segments, (self._ranks - 1) / self._ranks
        loads = {link: around * load for link, load in self._ring_loads().items()}
        for link, load in self._ways.loads(self._hops[-1]).items():
            loads[link] = loads.get(link, 0.0) + straight * load
        return Demand(
            self._ways.start_s(size_bytes) + self._step_s(),
            size_bytes,
            loads,
            rate_limit=self.calibration["gloo.reduce.bandwidth"] / around,
            host_limit=size_bytes / ((self._ranks - 1) * self.calibration["gloo.step_s"]),
            stall_s=max(self._handshakes_s(hop, segments - 2) for hop in self._hops),
        )

    def _copies_s(self, operation: Operation, size_bytes: int) -> float:
        """Return what torch copies: the message before a reduce-scatter or after an all-gather, and one rank's part."""
        copied = size_bytes * (1 + 1 / self._ranks) if operation.in_parts and not self._rings else 0.0
        return copied / self.calibration["gloo.copy.bandwidth"]

    def _uses_one_connection(self, operation: Operation) -> bool:
        """Whether two ranks send each other messages that are not cut into short segments, on one connection."""
        operations = (Operation.SENDRECV,) if self._rings else (Operation.ALL_GATHER, Operation.SENDRECV)
        return self._ranks == 2 and operation in operations

    def _hop_rate(self) -> float:
        """Return the bytes per second of the slowest hop by itself."""
        return min(
            each.link.bandwidth / load
            for hop in self._hops
            for each, load in zip(hop, self._ways.loads(hop).values(), strict=True)
        )

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return the segments one by one; where one node stands for all, its part of them."""
        if operation is Operation.ALL_TO_ALL:
            return self._all_to_all.steps(size_bytes)
        start_s = self._ways.start_s(size_bytes) + self._copies_s(operation, size_bytes)
        if self._ranks == 1 or size_bytes == 0:
            return Steps(start_s, ())
        around = self._resolve_operation(operation)
        # One node's part of a ring stands for all only where nodes are alike and all ranks do the same.
        if len(self._hops) < self._ranks and (not self._wiring.uniform or around.rooted or self._ranks == 2):
            return GlooTransport(
                self._wiring.placement, self.calibration, options=CollectiveOptions(expand=True, rings=self._rings)
            ).steps(operation, size_bytes)
        if around.rooted:
            return self._build_rooted(around, size_bytes)
        if self._uses_one_connection(around):
            schedule = build_pair_all_gather() if around.in_parts else exchange()
        else:
            schedule = self._build_ring(around, size_bytes)
        parts = schedule.chunks if len(self._hops) == self._ranks else schedule.chunks * around.parts(self._ranks)
        chunk_bytes = size_bytes / parts
        step_bytes = size_bytes / around.parts(self._ranks)
        summed = self._reduced_rate() if around.reduces else math.inf
        ways = {
            (rank, (rank + 1) % len(self._hops)): self._segment_connection(hop, chunk_bytes, step_bytes, summed)
            for rank, hop in enumerate(self._hops)
        }
        return Steps(start_s, (ChannelSchedule(schedule, chunk_bytes, ways),), self.capacities)

    def _build_ring(self, operation: Operation, size_bytes: int) -> TransferSchedule:
        segments = self._segments(size_bytes) // self._ranks if operation is Operation.ALLREDUCE else 2
        positions = len(self._hops)
        if operation is Operation.SENDRECV:
            return schedules.periodic_ring(positions, 1)
        if positions < self._ranks:
            return schedules.periodic_ring(positions, operation.steps(self._ranks), segments)
        make = schedules.ring if operation is Operation.ALLREDUCE else schedules.gathering_ring
        return make(self._ranks, segments)

    def _build_rooted(self, operation: Operation, size_bytes: int) -> Steps:
        """Return a broadcast's tree, or a reduce's ring and what it sends to the root."""
        if operation is Operation.BROADCAST:
            schedule, weights = binomial(self._ranks), binomial_weights(self._ranks)
        else:
            schedule, weights = build_reduce(self._ranks, self._segments(size_bytes)), {}
        chunk_bytes = size_bytes / schedule.chunks
        ways = {}
        for transfer in schedule.transfers:
            pair = (transfer.source, transfer.target)
            if transfer.reduce:
                hop = self._hops[transfer.source]
                summed = self.calibration["gloo.reduce.bandwidth"]
                ways[pair] = self._segment_connection(hop, chunk_bytes, size_bytes / self._ranks, summed)
            elif pair not in ways:
                ways[pair] = replace(self._ways.connection(*pair), weight=weights.get(pair, 1.0))
        return Steps(
            self._ways.start_s(size_bytes),
            (ChannelSchedule(schedule, chunk_bytes, ways),),
            {**self.capacities, **self._ways.capacities},
        )

    def _segments(self, size_bytes: float) -> int:
        wanted = max(math.ceil(size_bytes / _MAX_SEGMENT_BYTES), 2 * self._ranks)
        return math.ceil(wanted / self._ranks) * self._ranks

    def _handshakes_s(self, hop: Hop, segments: float) -> float:
        """Return how long a step's segments wait for the receiver's ready messages, nothing else in flight.

        The first two of a step, in flight together, wait for one round trip: the ready message's way and their own. The
        window then lets one segment go for each that came, when its ready message is there: one way each. Behind
        another collective's segments only the first round trip of a step shows. Measured on shaped links, torch 2.13,
        beyond the wire's time at 95.6 % of the link: two ranks, 5 ms one way: 21 ms up to 4 MiB (4 segments), 54 to 68
        for 16 MiB (16), 255 for 64 MiB, two of 8 MiB at once 10 to 38 ms; four ranks, 1 ms:
        14 ms up to 4 MiB (8 segments), 22 for 16 MiB, 57 to 72 for 64 MiB.
        """
        return self._ways.round_trip_s(hop) / 2 * segments

    def _segment_connection(self, hop: Hop, chunk_bytes: float, step_bytes: float, summed: float) -> Connection:
        """Return the way of one segment, with its part of a step's handshakes, and the rate of sums and threads."""
        segments = step_bytes / chunk_bytes
        return Connection(
            self._handshakes_s(hop, max(segments, 2)) / segments,
            self._ways.loads(hop),
            rate_limit=summed,
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

    def _resolve_operation(self, operation: Operation) -> Operation:
        """Return what moves the bytes of an operation: of torch's own reduce-scatter an allreduce."""
        return Operation.ALLREDUCE if operation is Operation.REDUCE_SCATTER and not self._rings else operation


_LAUNCH = "gloo.launch_s"


def adapt_to_group(calibration: Calibration, world: int, ranks: int) -> Calibration:
    """Return `calibration`, fitted to a ring of `world` ranks, for one of `ranks`.

    One table cannot tell a launch from what each step of the ring takes beside its bytes, so that a fitted launch holds
    the steps' share too: a ring of fewer ranks takes as much less as it has fewer steps, and the call's prior at least.
    """
    launch = calibration.constants.get(_LAUNCH)
    if launch is None or not launch.measured or not 1 < ranks < world:
        return calibration
    least_s = next(each.value for each in GLOO_PRIORS if each.name == _LAUNCH)
    share = Operation.ALLREDUCE.steps(ranks) / Operation.ALLREDUCE.steps(world)
    value = min(launch.value, max(least_s, launch.value * share))
    return calibration.with_values({_LAUNCH: value}, source=f"{launch.source}, for groups of {ranks} ranks")
