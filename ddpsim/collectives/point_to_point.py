"""What ranks of two neighbouring stages send each other, pair by pair, all at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddpsim.collectives.network.fairness import Demand, alone_s
from ddpsim.collectives.routes import total_by_key
from ddpsim.collectives.schedules import ChannelSchedule, Steps, Transfer, TransferSchedule
from ddpsim.collectives.transport import AlgorithmChoice, RankPaths, TransportOverPaths
from ddpsim.common.operation import Operation


class PointToPoint(TransportOverPaths):
    """Carries a message from each source to its target at once; the first pair stands for all.

    Args:
        ways: between the ranks.
        pairs: source and target of each message.
    """

    def __init__(self, ways: RankPaths, pairs: Iterable[tuple[int, int]]) -> None:
        super().__init__(ways)
        connections = [ways.connection(*pair) for pair in pairs]
        loads = total_by_key(load for each in connections for load in each.loads.items())
        self._connection = replace(connections[0], loads=loads)
        self.capacities = {link: ways.capacities[link] for link in loads}

    def choice(self, size_bytes: int, operation: Operation = Operation.SENDRECV) -> AlgorithmChoice:
        """Return how a message is sent."""
        return AlgorithmChoice("send", self._ways.protocol)

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the latency of a message and its bytes on the links."""
        way = self._connection
        latency_s = self._ways.start_s(size_bytes) + way.latency_s
        return Demand(latency_s, size_bytes, way.loads, way.rate_limit, way.weight, host_limit=way.host_limit)

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the time of a message with nothing else in flight."""
        return alone_s(self.demand(operation, size_bytes), self.capacities)

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return the message as one transfer."""
        schedule = TransferSchedule(2, 1, (Transfer(0, 1, 0, 1, False, ()),))
        lane = ChannelSchedule(schedule, size_bytes, {(0, 1): self._connection})
        return Steps(self._ways.start_s(size_bytes), (lane,) if size_bytes else ())
