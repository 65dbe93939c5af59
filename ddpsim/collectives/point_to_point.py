"""What ranks of two neighbouring stages send each other, pair by pair, all at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.rank_ways import RankPaths
from ddpsim.collectives.schedules import Transfer, TransferSchedule
from ddpsim.collectives.transport import AlgorithmChoice, ByOperation, ChannelSchedule, Connection, Steps
from ddpsim.network.fairness import Demand, LinkId, alone_s
from ddpsim.operations import Operation


@dataclass(frozen=True, slots=True)
class PointToPoint(ByOperation):
    """Carries a message from a rank to another, beside those of other pairs that go with it.

    Attributes:
        ways: between the ranks.
        connection: of the first pair, with what all pairs put on each link.
    """

    ways: RankPaths
    connection: Connection

    @classmethod
    def of(cls, ways: RankPaths, pairs: Iterable[tuple[int, int]]) -> PointToPoint:
        """Return what carries a message from each source to its target at once; the first pair stands for all."""
        found = [ways.connection(*pair) for pair in pairs]
        loads: dict[LinkId, float] = {}
        for each in found:
            for link, load in each.loads.items():
                loads[link] = loads.get(link, 0.0) + load
        first = found[0]
        return cls(ways, Connection(first.latency_s, loads, first.rate_limit, first.host_limit, first.weight))

    @property
    def backend(self) -> str:
        """`nccl` or `gloo`."""
        return self.ways.backend

    @property
    def calibration(self) -> Calibration:
        """The constants in force."""
        return self.ways.calibration

    @property
    def capacities(self) -> Mapping[LinkId, float]:
        """Bytes per second of every link on the way."""
        known = self.ways.capacities
        return {link: known[link] for link in self.connection.loads}

    @property
    def streams_per_group(self) -> int:
        """Messages in flight a pair."""
        return self.ways.streams_per_group

    @property
    def hops(self) -> Mapping[str, float]:
        """No kinds of hops: it is no ring."""
        return {}

    def choice(self, size_bytes: int, operation: Operation = Operation.SENDRECV) -> AlgorithmChoice:
        """Return how a message is sent."""
        return AlgorithmChoice("send", self.ways.protocol)

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the latency of a message and its bytes on the links."""
        way = self.connection
        latency_s = self.ways.start_s(size_bytes) + way.latency_s
        return Demand(latency_s, size_bytes, way.loads, way.rate_limit, way.weight, host_limit=way.host_limit)

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the time of a message with nothing else in flight."""
        return alone_s(self.demand(operation, size_bytes), self.ways.capacities)

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return the message as one transfer."""
        schedule = TransferSchedule(2, 1, (Transfer(0, 1, 0, 1, False, ()),))
        lane = ChannelSchedule(schedule, size_bytes, lambda source, target: self.connection)
        return Steps(self.ways.start_s(size_bytes), (lane,) if size_bytes else ())
