"""What carries the messages of a lane: a process group's collectives, or one stream's sends."""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import simpy

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.network.fluid import Demand, Network
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.schedules.mesh import STRIDED
from ddpsim.simulation.graph import BUFFERS, Collective
from ddpsim.topology.graph import Placement
from ddpsim.topology.placement import place


def part_of(placement: Placement, name: str, ranks: int) -> tuple[Placement, int]:
    """Return where a group's collective is run, and for how many groups of its name it stands."""
    each = placement.gpus_per_node
    if ranks == placement.world_size:
        return placement, 1
    if ranks == 1:
        return place(placement.topology, 1, 1), 1
    if name not in STRIDED:
        nodes = math.ceil(ranks / each)
        return place(placement.topology, nodes, math.ceil(ranks / nodes)), 1
    shards = placement.world_size // ranks
    if shards < each:
        return placement, shards
    return place(placement.topology, ranks, each), each


def share_of_together(ranks: int, part: Placement) -> float:
    """Return the share of bytes that groups of `ranks` send of one collective among all of `part`, run in their place.

    Each rank of a ring sends (p-1)/p of a message once or twice, by which the groups' few ranks send less.
    """
    if ranks in (1, part.world_size):
        return 1.0
    return Operation.ALLREDUCE.sent(ranks) / Operation.ALLREDUCE.sent(part.world_size)


def check_layer_groups(placement: Placement, ranks: int, place: str = "tensor_parallel") -> None:
    """Refuse groups of `ranks` that share layers or experts where they begin or end inside a node that others are on.

    Raises:
        InputError: a number, of the option `place`, that neither divides the ranks of a node nor is a multiple of them.
    """
    each = placement.gpus_per_node
    if ranks % each and each % ranks:
        what = f"groups of {ranks} ranks on nodes of {each}"
        raise InputError(what, place=place, remedy="give a divisor or a multiple of the ranks of a node")


class SharedNetwork(NamedTuple):
    """A network that several jobs are on, or several groups of a job's ranks, and whose messages these are there."""

    network: Network
    sender: Hashable


class StreamQueue:
    """The messages of one stream: while one is on the links, those behind it wait out their latency.

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
        self._last = self._network.env.process(self._send(demand, self._last))
        return self._last

    def _send(self, demand: Demand, before: simpy.Event | None) -> Generator[simpy.Event, Any, None]:
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
class LaneGroup:
    """A lane's process group, and what carries its messages.

    Attributes:
        collectives: of the group.
        ranks: of it.
        together: how many messages one collective stands for, where groups of a name send on the same links.
        line: the sends of a pattern over gloo, which go one behind the other; None of collectives.
    """

    collectives: Collectives
    ranks: int
    together: int = 1
    line: StreamQueue | None = None

    def sized(self, collective: Collective) -> int:
        """Return the bytes of the message that is sent for a collective."""
        return collective.size_bytes * (1 if collective.operation == BUFFERS else self.together)

    def demand(self, collective: Collective) -> Demand:
        """Return what a collective asks of the network: nothing where a rank is alone, in place as messages are.

        There neither NCCL (`src/enqueue.cc`) nor gloo does anything.
        """
        if self.ranks == 1:
            return Demand(0.0, 0, {})
        return self.collectives.transport.demand(collective.carried_as, self.sized(collective))

    def start(self, collective: Collective) -> simpy.Event:
        """Start the bytes of a collective."""
        if self.ranks == 1:
            return simpy.Timeout(self.collectives.env, 0.0)
        operation, size_bytes = collective.carried_as, self.sized(collective)
        if self.line is not None and collective.operation != BUFFERS:
            return self.line.send(self.demand(collective))
        return self.collectives.run(operation, size_bytes, 0 if collective.operation == BUFFERS else collective.lane)
