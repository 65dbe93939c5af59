"""Links between ranks and parameter servers, where each rank pushes and pulls without meeting the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.network.fluid import Demand, Network
from ddpsim.collectives.scaled import scale_demand
from ddpsim.collectives.transport import RankPaths
from ddpsim.common.operation import Operation
from ddpsim.schedules.servers import count_sendable
from ddpsim.simulation.graph import Collective
from ddpsim.simulation.lanes import StreamQueue

Bucket = tuple[int, ...]
"""Registration indices of what is pushed and pulled together."""


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
        staleness: how many gradients came so many updates of their bucket, by others, after their rank's pull of it.
    """

    env: simpy.Environment
    ways: RankPaths
    hosts: Sequence[int]
    buckets: Sequence[Sequence[Bucket]]
    latency_s: float | None
    factor: Callable[[int], float] | None = None
    latency: float = 1.0
    network: Network = field(init=False)
    staleness: Counter[int] = field(init=False, default_factory=Counter)
    _demands: dict[tuple[int, str, int], Demand] = field(init=False, default_factory=dict)
    _versions: dict[Bucket, int] = field(init=False, default_factory=dict)
    _seen: dict[tuple[int, Bucket], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.network = Network(self.env, {})

    def connect(self, rank: int) -> Callable[[Collective], simpy.Event]:
        """Return what sends one rank's messages."""
        return ServerConnection(self, rank).attend

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
            self.staleness[now - self._seen[rank, bucket]] += 1
        self._versions[bucket] = now + 1

    def note_pull(self, rank: int, bucket: Bucket) -> None:
        """Note which update of a bucket a rank has pulled."""
        self._seen[rank, bucket] = self._versions.get(bucket, 0)

    def remarks(self) -> dict[str, dict[str, float]]:
        """Return what was measured beside times: gradients counted, the mean of their staleness, and the most."""
        staleness, total = self.staleness, self.staleness.total()
        mean = sum(late * times for late, times in staleness.items()) / total if total else 0.0
        return {"servers": {"gradients": total, "staleness_mean": mean, "staleness_most": max(staleness, default=0)}}


def describe_staleness(staleness: Mapping[str, float]) -> str:
    """Return how stale gradients were."""
    mean, most = staleness["staleness_mean"], staleness["staleness_most"]
    return f"gradients are {mean:.1f} updates stale on average, {most:.0f} at most"


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
            # Servers have updated by it: what they send back from now on, of each bucket, is this update.
            sendable = self._sendable[bucket]
            for pulled in self._pulls[self._taken : sendable]:
                links.note_pull(self._rank, pulled)
            self._taken = sendable % len(self._pulls)
