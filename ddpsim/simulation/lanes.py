"""What carries the messages of a lane: a process group's collectives, one stream's sends, those of a pipeline.

Of a pipeline's ranks those of each place have their own groups, and its stages send each other. The collectives of a
place are run on the GPUs that its ranks have in a node. Where a copy lies in one node, all messages share its links.
Where it spans several, the collectives of places on one node of a copy share theirs, and what goes from stage to stage
shares them among itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import simpy

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.point_to_point import PointToPoint
from ddpsim.collectives.rank_ways import RankPaths
from ddpsim.collectives.transport import Transport
from ddpsim.errors import InputError
from ddpsim.jobs.pipeline import Pipeline
from ddpsim.network.fluid import Demand, Network
from ddpsim.operations import Operation
from ddpsim.schedules.mesh import DATA, SENDS, STRIDED, TENSOR, stage_of_group
from ddpsim.schedules.schedule import Lane
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


def part_of_place(placement: Placement, ranks: Sequence[int], groups: int) -> tuple[Placement, int]:
    """Return where the collectives of the ranks of one place in all copies are run, and for how many groups' each.

    They are the GPUs that the ranks have in a node, on as many nodes; in a domain of NVLink, all ranks.

    Args:
        groups: in which the ranks sum, each of one rank a copy.
    """
    each, topology = placement.gpus_per_node, placement.topology
    if topology.nvlink_domain is not None:
        return part_of(placement, DATA, len(ranks) // groups)
    nodes, gpus = len({rank // each for rank in ranks}), sorted({rank % each for rank in ranks})
    seen = topology.visible_devices or range(each)
    return place(replace(topology, visible_devices=tuple(seen[gpu] for gpu in gpus)), nodes, len(gpus)), groups


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


_BETWEEN = -1
"""The network of what goes from stage to stage on other nodes, among those of nodes."""


@dataclass(slots=True)
class StageLinks:
    """Makes what carries the messages of each lane.

    Attributes:
        placement: of all ranks.
        given: the pipeline.
        tensor: ranks that share each layer of a stage.
        ways: between ranks.
        make: the collectives of a part of the machine, each of which takes some share of its time.
        over: the collectives of a transport.
    """

    env: simpy.Environment
    placement: Placement
    given: Pipeline
    tensor: int
    ways: RankPaths
    make: Callable[[Placement, SharedNetwork, float], Collectives]
    over: Callable[[Transport, SharedNetwork], Collectives]
    _networks: dict[int, Network] = field(init=False, default_factory=dict)

    def lanes(self, lanes: Sequence[Lane]) -> list[LaneGroup]:
        """Return what carries the messages of the lanes of all ranks."""
        made: dict[Lane, LaneGroup] = {}
        for group, stream in lanes:
            name, number = stage_of_group(group)
            key = (group, stream if name == SENDS else "")
            if key not in made:
                made[key] = self._sends(number, stream) if name == SENDS else self._groups(name, number)
        return [made[group, stream if group.startswith(SENDS) else ""] for group, stream in lanes]

    def _groups(self, name: str, place: int) -> LaneGroup:
        """Return the collectives of the groups `name` of a place, with their ranks and how many they stand for."""
        tensor, ranks = self.tensor, self._ranks(place)
        if name == TENSOR:
            part, together, count, share = *part_of(self.placement, TENSOR, tensor), tensor, 1.0
        else:
            count = len(ranks) // tensor
            part, together = part_of_place(self.placement, ranks, tensor)
            share = share_of_together(count, part)
        network = self._network(ranks[0] // self.placement.gpus_per_node)
        return LaneGroup(self.make(part, SharedNetwork(network, (name, place, share)), share), count, together)

    def _sends(self, stage: int, kind: str) -> LaneGroup:
        """Return what carries that which a stage sends to the next, or back to the one before."""
        places, each = self.given.stages, self.placement.gpus_per_node
        target = stage + 1 if kind == "forward" else stage - 1
        pairs = list(zip(self._ranks(stage % places), self._ranks(target % places), strict=True))
        nodes = {rank // each for rank in pairs[0]}
        # Copies on other nodes put as much on links of their own.
        near = [pair for pair in pairs if not nodes.isdisjoint(rank // each for rank in pair)]
        network = self._network(0 if self._is_in_node else _BETWEEN)
        return LaneGroup(self.over(PointToPoint(self.ways, near), SharedNetwork(network, (SENDS, stage, kind))), 2)

    @property
    def _is_in_node(self) -> bool:
        """Whether a copy lies in one node."""
        each, copy = self.placement.gpus_per_node, self.given.stages * self.tensor
        return self.placement.nodes == 1 or (self.given.mapping == "tp-pp-dp" and copy <= each)

    def _ranks(self, place: int) -> list[int]:
        world = self.placement.world_size
        return [rank for rank in range(world) if self.given.place_of(rank, world, self.tensor) == place]

    def _network(self, node: int) -> Network:
        return self._networks.setdefault(node, Network(self.env, {}))
