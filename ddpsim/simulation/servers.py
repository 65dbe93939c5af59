"""Who carries messages where not all ranks meet on one process group: groups' lanes, a pipeline's, parameter servers.

Of a pipeline's ranks those of each place have their own groups, and its stages send each other. The collectives of a
place are run on the GPUs that its ranks have in a node. Where a copy lies in one node, all messages share its links.
Where it spans several, the collectives of places on one node of a copy share theirs, and what goes from stage to stage
shares them among itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import simpy

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.groups import part_of, part_of_place, share_of_together
from ddpsim.collectives.launched import BUFFERS, Collective
from ddpsim.collectives.point_to_point import PointToPoint
from ddpsim.collectives.rank_ways import RankPaths
from ddpsim.collectives.scaled import scale_demand
from ddpsim.collectives.transport import Transport
from ddpsim.jobs.pipeline import Pipeline
from ddpsim.network.fairness import LinkId
from ddpsim.network.fluid import Demand, Network
from ddpsim.operations import Operation
from ddpsim.schedules.mesh import SENDS, TENSOR, stage_of_group
from ddpsim.schedules.schedule import Lane
from ddpsim.schedules.servers import count_sendable
from ddpsim.topology.graph import Placement


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

    def start(self, collective: Collective) -> simpy.Event:
        """Start the bytes of a collective."""
        operation, size_bytes = collective.carried_as, self.sized(collective)
        if self.line is not None and collective.operation != BUFFERS:
            return self.line.send(self.collectives.transport.demand(operation, size_bytes))
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


Bucket = tuple[int, ...]
"""Registration indices of what is pushed and pulled together."""


@dataclass(slots=True)
class Staleness:
    """Staleness counts the gradients that servers took in, and the updates by others that each came after.

    Attributes:
        counts: by how many updates of a bucket lay between a rank's pull of it and its next push.
    """

    counts: dict[int, int] = field(default_factory=dict)

    def note(self, updates: int) -> None:
        """Count a gradient that came `updates` updates late."""
        self.counts[updates] = self.counts.get(updates, 0) + 1

    def document(self) -> dict[str, float]:
        """Return gradients counted, the mean of their staleness, and the most."""
        total = sum(self.counts.values())
        mean = sum(late * times for late, times in self.counts.items()) / total if total else 0.0
        return {"gradients": total, "staleness_mean": mean, "staleness_most": max(self.counts, default=0)}


@dataclass(slots=True, eq=False)
class ServerLinks:
    """The links between training ranks and servers, which hold an equal part of each message.

    Attributes:
        ways: between them.
        hosts: the ranks that are servers, or whose places servers share.
        buckets: of each lane, in the order of its messages.
        latency_s: of a message before its bytes, where messages go one behind the other; None where each takes what a
            collective does.
        factor: on the time of a message of some bytes: an end of a band; None is 1.
        latency: factor on the time before its bytes.
    """

    env: simpy.Environment
    ways: RankPaths
    hosts: Sequence[int]
    buckets: Sequence[Sequence[Bucket]]
    latency_s: float | None
    factor: Callable[[int], float] | None = None
    latency: float = 1.0
    network: Network = field(init=False)
    staleness: Staleness = field(init=False, default_factory=Staleness)
    _demands: dict[tuple[int, str, int], Demand] = field(init=False, default_factory=dict)
    _versions: dict[Bucket, int] = field(init=False, default_factory=dict)
    _seen: dict[tuple[int, Bucket], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.network = Network(self.env, {})

    def demand(self, rank: int, collective: Collective) -> Demand:
        """Return what a rank's push or pull asks of the network."""
        size_bytes, loads, latency_s = collective.size_bytes, dict[LinkId, float](), 0.0
        key = (rank, str(collective.operation), size_bytes)
        if key in self._demands:
            return self._demands[key]
        for server in self.hosts:
            if server == rank:
                continue
            ends = (rank, server) if collective.operation is Operation.REDUCE else (server, rank)
            connection = self.ways.connection(*ends)
            latency_s = max(latency_s, connection.latency_s)
            for link, load in connection.loads.items():
                loads[link] = loads.get(link, 0.0) + load / len(self.hosts)
        self.network.add(self.ways.capacities)
        latency_s = (self.ways.start_s(size_bytes) + latency_s) * self.latency
        demand = Demand(latency_s, size_bytes if loads else 0, loads)
        found = self._demands[key] = demand if self.factor is None else scale_demand(demand, self.factor(size_bytes))
        return found

    def count_push(self, rank: int, bucket: Bucket) -> None:
        """Count a rank's gradient of a bucket, which the servers now update by."""
        now = self._versions.get(bucket, 0)
        if (rank, bucket) in self._seen:
            self.staleness.note(now - self._seen[rank, bucket])
        self._versions[bucket] = now + 1

    def note_pull(self, rank: int, bucket: Bucket) -> None:
        """Note which update of a bucket a rank has pulled."""
        self._seen[rank, bucket] = self._versions.get(bucket, 0)


class ServerConnection:
    """Sends one rank's messages as they come, without those of others.

    Servers take what a rank pulls as it is when they have updated by that rank's gradient, and by all that come before
    it in the order of the pulls.
    """

    def __init__(self, links: ServerLinks, rank: int) -> None:
        self._links, self._rank = links, rank
        latency_s, buckets = links.latency_s, links.buckets
        self._lines = None if latency_s is None else [StreamQueue(links.network, latency_s, rank) for _ in buckets]
        pushes, pulls = [lane for lane in buckets if lane]
        self._pulls = pulls
        self._sendable = dict(zip(pushes, count_sendable([pushes.index(bucket) for bucket in pulls]), strict=True))
        self._taken = 0

    def attend(self, collective: Collective) -> simpy.Event:
        """Send a collective; return the event of its end."""
        return self._links.env.process(self._send(collective))

    def _send(self, collective: Collective) -> Generator[simpy.Event, Any, None]:
        links = self._links
        of_lane = links.buckets[collective.lane]
        bucket = of_lane[collective.number % len(of_lane)]
        demand = links.demand(self._rank, collective)
        line = None if self._lines is None else self._lines[collective.lane]
        yield links.network.transfer(demand, self._rank) if line is None else line.send(demand)
        if collective.operation is Operation.REDUCE:
            links.count_push(self._rank, bucket)
            self._take(bucket)

    def _take(self, pushed: Bucket) -> None:
        """Note which update of each bucket is sent back, now that the servers have updated by `pushed`."""
        for bucket in self._pulls[self._taken : self._sendable[pushed]]:
            self._links.note_pull(self._rank, bucket)
        self._taken = self._sendable[pushed] % len(self._pulls)
