"""Who carries messages where not all ranks meet on one process group: streams of groups, and parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import simpy

from ddpsim.collectives.ddp_costs import Costs
from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.rank_ways import RankPaths
from ddpsim.collectives.scaled import scale_demand
from ddpsim.network.fairness import LinkId
from ddpsim.network.fluid import Demand, Network
from ddpsim.operations import Operation
from ddpsim.schedules.servers import count_sendable
from ddpsim.simulation.contention import OnBusy, Process, slow_messages
from ddpsim.simulation.graph import BUFFERS, Collective
from ddpsim.topology.graph import Placement


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

    def _send(self, demand: Demand, before: simpy.Event | None) -> Process:
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


class ServerLinks:
    """The links between training ranks and servers, which hold an equal part of each message.

    Args:
        env: the simulation.
        placement: training ranks and servers.
        ways: between them.
        costs: say how a rank's computation slows its own messages.
        hosts: the ranks that are servers, or whose places servers share.
        buckets: of each lane, in the order of its messages.
        latency_s: of a message before its bytes, where messages go one behind the other; None where each takes what a
            collective does.
        factor: on the time of a message of some bytes: an end of a band; None is 1.
        latency: factor on the time before its bytes.
    """

    def __init__(
        self,
        env: simpy.Environment,
        placement: Placement,
        ways: RankPaths,
        costs: Costs,
        hosts: Sequence[int],
        buckets: Sequence[Sequence[Bucket]],
        latency_s: float | None,
        factor: Callable[[int], float] | None = None,
        latency: float = 1.0,
    ) -> None:
        self.env, self._hosts, self._buckets = env, hosts, buckets
        self._factor, self._latency = factor, latency
        self._ways, self._costs = ways, costs
        self.network, self.latency_s = Network(env, {}), latency_s
        self.staleness = Staleness()
        self._demands: dict[tuple[int, str, int], Demand] = {}
        self._versions: dict[Bucket, int] = {}
        self._seen: dict[tuple[int, Bucket], int] = {}

    def attendance(self, rank: int) -> ServerConnection:
        """Return what sends the messages of a rank."""
        return ServerConnection(self, rank, self._buckets)

    def on_busy(self, rank: int) -> OnBusy:
        """Return what is told when a rank becomes busy or idle, and slows its messages; of no kind of hops, as those
        of a pattern are."""
        return slow_messages(self.network, self._costs, (), rank)

    def demand(self, rank: int, collective: Collective) -> Demand:
        """Return what a rank's push or pull asks of the network."""
        key = (rank, str(collective.operation), collective.size_bytes)
        if key not in self._demands:
            self._demands[key] = self._make_demand(rank, collective)
        return self._demands[key]

    def _make_demand(self, rank: int, collective: Collective) -> Demand:
        size_bytes = collective.size_bytes
        loads: dict[LinkId, float] = {}
        latency_s = 0.0
        for server in self._hosts:
            if server == rank:
                continue
            ends = (rank, server) if collective.operation is Operation.REDUCE else (server, rank)
            connection = self._ways.connection(*ends)
            latency_s = max(latency_s, connection.latency_s)
            for link, load in connection.loads.items():
                loads[link] = loads.get(link, 0.0) + load / len(self._hosts)
        self.network.add(self._ways.capacities)
        latency_s = (self._ways.start_s(size_bytes) + latency_s) * self._latency
        demand = Demand(latency_s, size_bytes if loads else 0, loads)
        return demand if self._factor is None else scale_demand(demand, self._factor(size_bytes))

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

    def __init__(self, links: ServerLinks, rank: int, buckets: Sequence[Sequence[Bucket]]) -> None:
        self._links, self._rank, self._buckets = links, rank, buckets
        latency_s = links.latency_s
        self._lines = None if latency_s is None else [StreamQueue(links.network, latency_s, rank) for _ in buckets]
        pushes, pulls = [lane for lane in buckets if lane]
        self._pulls = pulls
        self._sendable = dict(zip(pushes, count_sendable([pushes.index(bucket) for bucket in pulls]), strict=True))
        self._taken = 0

    def attend(self, collective: Collective) -> simpy.Event:
        """Send a collective; return the event of its end."""
        return self._links.env.process(self._send(collective))

    def _send(self, collective: Collective) -> Process:
        links = self._links
        of_lane = self._buckets[collective.lane]
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
