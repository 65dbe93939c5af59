"""An all-to-all: each rank sends every other its part of the message, all at once, over a backend's ways.

Both libraries start all sends and receives together: NCCL's is a group of `ncclSend` and `ncclRecv` (2.30,
`src/enqueue.cc`), gloo's posts them to one rank after the other and waits for all (`gloo/alltoall.cc`). Parts are
equal: the flows of the link that is fullest for its bandwidth share it evenly to the end, and no other ends later.

Over gloo the two ranks that are opposite each other, of an even number, start to send to each other at the same time
on one connection, and go one after the other. Measured on links of 200 Mbit/s, torch 2.13, `all_to_all_single`, 1 to
12 MiB: 2 ranks take 1.0 times the message from 4 MiB on (0.5 at 1 MiB), 3 ranks 0.68 to 0.87, 4 ranks 0.87 to 0.98 in
tries of 0.74 to 1.07, 8 ranks 0.94 to 1.03; all at once would be 0.5, 0.67, 0.75 and 0.88, this is 1, 0.67, 1 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ddpsim.collectives.network.fairness import Demand, LinkId
from ddpsim.collectives.routes import total_by_key
from ddpsim.collectives.schedules import ChannelSchedule, Connection, Steps, exchange_pairs
from ddpsim.collectives.transport import RankPaths
from ddpsim.common.errors import TopologyError

MOST_RANKS = 256
"""Ranks whose pairs are found one by one at most; chosen by hand: 256 have 65,280, in some five seconds of a processor
(`ddpsim collective --op alltoall --topology dgx-h100 --nodes 32`)."""


class AllToAll:
    """Costs an all-to-all of all ranks of a placement.

    Args:
        ways: between any two ranks, of every node by itself.
        ranks: how many there are.
        shared: bytes per second of the links that other operations load, by name.
        in_turn: whether opposite ranks send one after the other, as on gloo's one connection between two.

    Raises:
        TopologyError: more than `MOST_RANKS`.
    """

    def __init__(self, ways: RankPaths, ranks: int, shared: Mapping[LinkId, float], *, in_turn: bool = False) -> None:
        if ranks > MOST_RANKS:
            what = f"an all-to-all of {ranks} ranks"
            raise TopologyError(what, place="operation", remedy=f"give a group of {MOST_RANKS} ranks at most")
        self._ways, self._shared = ways, shared
        self._schedule = exchange_pairs(ranks, in_turn=in_turn)

    def demand(self, size_bytes: int) -> Demand:
        """Return the latency of the longest way, and the bytes of all pairs on the links that others load too."""
        longest_s = max((each.latency_s for each in self._connections.values()), default=0.0)
        start_s = self._ways.start_s(size_bytes)
        if not self._connections or size_bytes == 0:
            return Demand(start_s, 0, {})
        first, second = self._loads
        loads = {link: load + second.get(link, 0.0) for link, load in first.items()}
        shared = {link: load for link, load in loads.items() if link in self._shared}
        turns = 2 if second else 1
        return Demand(start_s + turns * longest_s, size_bytes, shared, 1 / (self._byte_s(first) + self._byte_s(second)))

    def steps(self, size_bytes: int) -> Steps:
        """Return the sends of all pairs."""
        start_s = self._ways.start_s(size_bytes)
        if not self._connections or size_bytes == 0:
            return Steps(start_s, ())
        chunk_bytes = size_bytes / self._schedule.chunks
        lane = ChannelSchedule(self._schedule, chunk_bytes, self._connections)
        return Steps(start_s, (lane,), self._ways.capacities)

    @cached_property
    def _connections(self) -> dict[tuple[int, int], Connection]:
        return {(t.source, t.target): self._ways.connection(t.source, t.target) for t in self._schedule.transfers}

    @cached_property
    def _loads(self) -> tuple[dict[LinkId, float], dict[LinkId, float]]:
        """Bytes on each link for a byte of the message: of what is sent at once, and of what waits for its turn."""
        schedule = self._schedule

        def loads(*, waits: bool) -> dict[LinkId, float]:
            sent = (transfer for transfer in schedule.transfers if bool(transfer.after) is waits)
            ways = (self._connections[transfer.source, transfer.target] for transfer in sent)
            return total_by_key((link, load / schedule.chunks) for way in ways for link, load in way.loads.items())

        return loads(waits=False), loads(waits=True)

    def _byte_s(self, loads: Mapping[LinkId, float]) -> float:
        """Return seconds for a byte of the message on the fullest link, where nothing else is sent."""
        capacities = self._ways.capacities
        return max((load / capacities[link] for link, load in loads.items()), default=0.0)
