"""The process groups of a schedule: on which ranks the messages of each go, beside those of its like."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import simpy

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.transport import Transport
from ddpsim.network.fairness import Demand
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.schedules.issuing import Lane
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.sharded import REPLICA
from ddpsim.simulation.contention import Process
from ddpsim.simulation.graph import Collective
from ddpsim.topology.graph import Placement
from ddpsim.topology.placement import place


class StreamQueue:
    """A line is the messages of one stream: while one is on the links, those behind it wait out their latency.

    Args:
        network: whose links they take.
        latency_s: from the moment at which both ends have posted a message to its first byte.
        sender: whose messages; None where all ranks send at once.
    """

    def __init__(self, network: Network, latency_s: float, sender: int | None = None) -> None:
        self._network, self._latency_s, self._sender = network, latency_s, sender
        self._last: simpy.Event | None = None

    def send(self, demand: Demand) -> simpy.Event:
        """Send a message behind those before it; return the event of its end."""
        self._last = self._network.env.process(self._sent(demand, self._last))
        return self._last

    def _sent(self, demand: Demand, before: simpy.Event | None) -> Process:
        if self._latency_s > 0:
            yield self._network.env.timeout(self._latency_s)
        if before is not None and not before.processed:
            yield before
        yield self._network.transfer(replace(demand, latency_s=0.0), self._sender)


def send_s(world: Collectives, ranks: int) -> float:
    """Return what a send over gloo takes before its bytes: a step of an allreduce that has hardly any."""
    steps = Operation.ALLREDUCE.steps(ranks)
    return world.estimate_s(ranks) / steps if steps else 0.0


@dataclass(frozen=True, slots=True)
class MessageStreams:
    """Runs the messages of a schedule, each on the collectives of its process group.

    All groups of a name carry out their message at once. Those of consecutive ranks are taken to share no link. Those
    of one place in each shard share their nodes' NICs: together they load them as one allreduce does that has all their
    messages, so that it is run in their place, among all GPUs of the nodes they are on.

    Groups of different names do not slow each other: shards lie in a node as a rule, replicas across nodes. What
    follows a pattern over gloo is sends and receives, which go one behind the other.

    Attributes:
        groups: collectives of each lane.
        ranks: of its process group.
        together: how many messages one collective stands for.
        lines: the sends of each lane that has any.
    """

    groups: list[Collectives]
    ranks: list[int]
    together: list[int]
    lines: list[StreamQueue | None]

    @classmethod
    def of(
        cls,
        lanes: Sequence[Lane],
        ranks_of: Mapping[str, int],
        world: Collectives,
        placement: Placement,
        make: Callable[[Placement, str | None], Collectives],
        patterns: Mapping[str, str],
    ) -> MessageStreams:
        """Return the lanes of a schedule.

        Args:
            lanes: groups and streams.
            ranks_of: how many ranks each process group beside that of all ranks has.
            world: of all ranks.
            make: the collectives of a part of `placement`, by a pattern or the backend's own algorithm.
            patterns: by group, where there is one.
        """
        made: dict[str, tuple[Collectives, int, int]] = {WORLD: (world, placement.world_size, 1)}
        for name, ranks in ranks_of.items():
            part, together = part_of(placement, name, ranks)
            pattern = patterns.get(name)
            shared = part is placement and pattern is None
            made[name] = (world if shared else make(part, pattern), ranks, together)
        groups, sizes, together_of = zip(*(made[group] for group, _ in lanes), strict=True)
        lines = [
            StreamQueue(made[group][0].network, send_s(world, placement.world_size))
            if group in patterns and world.sends_in_line
            else None
            for group, _ in lanes
        ]
        return cls(list(groups), list(sizes), list(together_of), lines)

    def run(self, collective: Collective) -> simpy.Event:
        """Start the bytes of a collective."""
        size_bytes = self.together[collective.lane] * collective.size_bytes
        line = self.lines[collective.lane]
        if line is not None:
            return line.send(self.groups[collective.lane].transport.demand(Operation(collective.operation), size_bytes))
        return self.groups[collective.lane].run(Operation(collective.operation), size_bytes, collective.lane)

    def steps(self, collective: Collective) -> int:
        """Return the steps of a collective among the ranks of its group; one of what goes from rank to rank."""
        line = self.lines[collective.lane]
        return 1 if line is not None else Operation(collective.operation).steps(self.ranks[collective.lane])

    def transports(self) -> list[tuple[Transport, int]]:
        """Return the transport and the ranks of each lane."""
        return [(group.transport, ranks) for group, ranks in zip(self.groups, self.ranks, strict=True)]


def part_of(placement: Placement, name: str, ranks: int) -> tuple[Placement, int]:
    """Return where a group's collective is run, and for how many groups of its name it stands."""
    each = placement.gpus_per_node
    if ranks == placement.world_size:
        return placement, 1
    if name != REPLICA:
        nodes = math.ceil(ranks / each)
        return place(placement.topology, nodes, math.ceil(ranks / nodes)), 1
    shards = placement.world_size // ranks
    if shards < each:
        return placement, shards
    return place(placement.topology, ranks, each), each
