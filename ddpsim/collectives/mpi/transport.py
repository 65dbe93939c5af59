"""Open MPI under PyTorch: blocking collectives, one at a time, by the algorithm that `coll/tuned` picks.

An allreduce is as `pick_algorithm` says. Of the operations that DDP asks for beside it a model each: a broadcast and a
reduce go along a binomial tree of whole messages, a reduce-scatter and an all-gather around a ring up to 32 ranks, by
halves beyond, sends between neighbours and all-to-alls all at once; Open MPI's own choice among more algorithms for
these moves their latency, not their bytes, but for the trees.

`pick_algorithm` is `coll/tuned` without rules of a user's own. Source: Open MPI's 4.1 series,
`ompi/mca/coll/tuned/coll_tuned_decision_fixed.c` as rewritten in 2020, read from a copy that names no tag and not
compared with that of 4.1.4; of operations that commute. What each then does is by
`ompi/mca/coll/base/coll_base_allreduce.c`, from memory: a segmented ring without a segment size is a ring; with fewer
elements than ranks a ring is recursive doubling, and Rabenseifner's with fewer than it has parts too.

Open MPI's ways between any two ranks: shared memory inside a machine, TCP by each node's first NIC between nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

from ddpsim.collectives import schedules
from ddpsim.collectives.all_to_all import AllToAll
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import DEFAULT, CollectiveOptions
from ddpsim.collectives.host_paths import HostPaths
from ddpsim.collectives.network.fairness import Demand, LinkId
from ddpsim.collectives.patterns import PatternTransport, refuse_unknown_algorithm
from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.schedules import Builder, Connection, Steps, TransferSchedule
from ddpsim.collectives.transport import AlgorithmChoice, Transport
from ddpsim.common.errors import TopologyError
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Placement

_DOUBLING, _RING, _SEGMENTED = "recursive-doubling", "ring", "segmented-ring"
_RABENSEIFNER, _REDUCE_BROADCAST = "rabenseifner", "reduce-broadcast"
ALGORITHMS = (_DOUBLING, _RING, _SEGMENTED, _RABENSEIFNER, _REDUCE_BROADCAST)
"""As `choice` names them: Open MPI's 3, 4, 5, 6 and 2."""

_FROM_RANKS = (0, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 4096)
_RULES: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = (
    (
        (8, 4096, 8192, 16384, 65536, 262144),
        (_RING, _DOUBLING, _RING, _DOUBLING, _RING, _SEGMENTED, _RABENSEIFNER),
    ),
    ((16, 8192), (_RING, _DOUBLING, _RABENSEIFNER)),
    ((8192,), (_DOUBLING, _RABENSEIFNER)),
    ((64, 4096), (_SEGMENTED, _DOUBLING, _RABENSEIFNER)),
    ((128,), (_SEGMENTED, _RABENSEIFNER)),
    ((262144,), (_DOUBLING, _RABENSEIFNER)),
    ((131072, 262144), (_REDUCE_BROADCAST, _DOUBLING, _RABENSEIFNER)),
    ((4096,), (_REDUCE_BROADCAST, _RABENSEIFNER)),
    ((2048, 16384), (_REDUCE_BROADCAST, _DOUBLING, _RABENSEIFNER)),
    ((2048, 4096, 16384), (_REDUCE_BROADCAST, _SEGMENTED, _DOUBLING, _RABENSEIFNER)),
    ((2048, 16384, 32768), (_REDUCE_BROADCAST, _SEGMENTED, _DOUBLING, _RABENSEIFNER)),
)
"""From so many ranks on: the bytes from which the next algorithm is taken, and the algorithms."""
_ELEMENT_BYTES = 4
"""Of float32, as gradients are."""


def pick_algorithm(ranks: int, size_bytes: int) -> str:
    """Return the algorithm of an allreduce of `size_bytes`, as it is carried out."""
    bounds, algorithms = _RULES[bisect_right(_FROM_RANKS, ranks) - 1]
    algorithm = algorithms[bisect_right(bounds, size_bytes)]
    elements = size_bytes // _ELEMENT_BYTES
    least = {_RING: ranks, _SEGMENTED: ranks, _RABENSEIFNER: 1 << (ranks.bit_length() - 1)}
    return _DOUBLING if elements < least.get(algorithm, 0) else algorithm


EAGER_BYTES = {True: 4096, False: 65536}
"""Bytes up to which a message is sent at once, inside a machine and between two: `btl_vader_eager_limit` and
`btl_tcp_eager_limit` of Open MPI 4.1.4 (`ompi_info --all`). A longer one waits until the receiver has answered."""


class MpiPaths(HostPaths):
    """Finds the ways of messages of a collective between ranks of a placement.

    Args:
        message_bytes: of the longest of them, which decides whether they wait for the receiver.
        summed: share of what arrives that is added, at `mpi.reduce.bandwidth`.
    """

    backend = "mpi"
    streams_per_group = 1

    def __init__(
        self, wiring: PlacementLinks, calibration: Calibration, message_bytes: float = 0.0, summed: float = 0.5
    ) -> None:
        HostPaths.__init__(self, wiring, calibration)
        self._message_bytes = message_bytes
        self._rate = self.constant("reduce.bandwidth") / summed

    def connection(self, source: int, target: int) -> Connection:
        """Return the way from one rank to another: a message's own, after the receiver's answer where it is long."""
        hop = self.hop(source, target)
        per_node = self.wiring.placement.gpus_per_node
        inside = source // per_node == target // per_node
        latency_s = self.constant("step_s") + self.round_trip_s(hop) / 2
        if self._message_bytes > EAGER_BYTES[inside]:
            latency_s += self.round_trip_s(hop)
        return replace(HostPaths.connection(self, source, target), latency_s=latency_s, rate_limit=self._rate)


_MOST_RANKS = 256
"""As of any pattern that is expanded rank by rank (`patterns.py`)."""
_MOST_IN_RING = 32
"""Ranks up to which a reduce-scatter of a large message is a ring: `coll_tuned_decision_fixed.c`."""


class MpiTransport(Transport):
    """Predicts Open MPI's collectives on a placement.

    Args:
        placement: ranks, node by node.
        calibration: constants; the priors where None.
        options: whose algorithm may be one of Open MPI's, or `auto`: its own choice.

    Raises:
        InputError: an algorithm that it has not.
        TopologyError: more ranks than are expanded.
    """

    backend = "mpi"
    streams_per_group = 1
    hops: Mapping[str, float] = MappingProxyType({})

    def __init__(
        self,
        placement: Placement,
        calibration: Calibration | None = None,
        options: CollectiveOptions = DEFAULT,
    ) -> None:
        refuse_unknown_algorithm("MPI", options.algorithm, ALGORITHMS)
        if placement.world_size > _MOST_RANKS:
            what = f"MPI on {placement.world_size} ranks"
            raise TopologyError(what, place="backend", remedy=f"{_MOST_RANKS} at most")
        self.calibration = calibration or Calibration.priors("mpi")
        self._placement, self._algorithm = placement, options.algorithm
        self._wiring = PlacementLinks(placement, expand=True)
        self._ranks = placement.world_size
        self._patterns: dict[tuple[str, bool, bool], PatternTransport] = {}

    @cached_property
    def capacities(self) -> Mapping[LinkId, float]:  # type: ignore[override]  # found when asked for
        """Bytes per second of every link between any two ranks."""
        ways = MpiPaths(self._wiring, self.calibration)
        for source in range(self._ranks):
            for target in range(self._ranks):
                if source != target:
                    ways.connection(source, target)
        return ways.capacities

    def choice(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> AlgorithmChoice:
        """Return Open MPI's choice, or the algorithm that was forced; of other operations the one modelled."""
        if operation is Operation.ALLREDUCE:
            chosen = pick_algorithm(self._ranks, size_bytes) if self._algorithm == "auto" else self._algorithm
            return AlgorithmChoice(chosen, "tcp")
        if operation.rooted:
            return AlgorithmChoice("binomial", "tcp")
        if operation.in_parts:
            return AlgorithmChoice("ring" if self._ranks <= _MOST_IN_RING else "halves", "tcp")
        return AlgorithmChoice("shift" if operation is Operation.SENDRECV else "pairs", "tcp")

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the longest chain's latency and all the bytes of the schedule at the rate of its steps."""
        if operation is Operation.ALL_TO_ALL:
            return self._all_to_all(size_bytes).demand(size_bytes)
        return self._pattern(operation, size_bytes).demand(Operation.ALLREDUCE, size_bytes)

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the time of an operation with nothing else in flight."""
        demand = self.demand(operation, size_bytes)
        return demand.latency_s + (demand.size_bytes / demand.rate_limit if demand.size_bytes else 0.0)

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return every transfer."""
        if operation is Operation.ALL_TO_ALL:
            return self._all_to_all(size_bytes).steps(size_bytes)
        return self._pattern(operation, size_bytes).steps(Operation.ALLREDUCE, size_bytes)

    def _all_to_all(self, size_bytes: int) -> AllToAll:
        ways = MpiPaths(self._wiring, self.calibration, size_bytes / self._ranks)
        return AllToAll(ways, self._ranks, self.capacities)

    def _pattern(self, operation: Operation, size_bytes: int) -> PatternTransport:
        """Return the schedule of an operation; those whose messages all wait, or all do not, are made once."""
        name = self.choice(size_bytes, operation).algorithm
        longest = size_bytes * _LONGEST.get(name, 1.0) / (self._ranks if name in ("ring", "segmented-ring") else 1)
        waits = {inside: longest > limit for inside, limit in EAGER_BYTES.items()}
        key = f"{operation}.{name}", waits[True], waits[False]
        if key not in self._patterns:
            summed = 1.0 if name == "recursive-doubling" or operation is Operation.REDUCE else 0.5
            ways = MpiPaths(self._wiring, self.calibration, longest, summed)
            schedule = self._schedule(operation, name)
            self._patterns[key] = PatternTransport(self._placement, ways, name, schedule)
        return self._patterns[key]

    def _schedule(self, operation: Operation, name: str) -> TransferSchedule:
        ranks = self._ranks
        if operation is Operation.SENDRECV:
            return schedules.shift(ranks)
        if operation.rooted:
            return _binomial(ranks, reduce=operation.reduces, copy=not operation.reduces)
        if operation.in_parts:
            if name == "ring":
                ring = schedules.scattering_ring if operation.reduces else schedules.gathering_ring
                return ring(ranks)
            return schedules.half(schedules.halving_doubling(ranks), reduce=operation.reduces)
        if name == "recursive-doubling":
            return schedules.recursive_doubling(ranks)
        if name == "rabenseifner":
            return schedules.halving_doubling(ranks)
        if name == "reduce-broadcast":
            return _binomial(ranks, reduce=True, copy=True)
        return schedules.ring(ranks)


_LONGEST = {"rabenseifner": 0.5, "halves": 0.5}
"""Share of the message that the longest of an algorithm's messages has; a ring's are those of one rank's part."""


def _binomial(ranks: int, *, reduce: bool, copy: bool) -> TransferSchedule:
    """Return a sum up a binomial tree to rank 0, a copy down it, or one after the other."""
    builder = Builder(ranks, 1)
    distances = [1 << level for level in range((ranks - 1).bit_length())]
    for distance in distances if reduce else ():
        for rank in range(distance, ranks, 2 * distance):
            builder.send(rank, rank - distance, 0, 1, reduce=True)
    for distance in reversed(distances) if copy else ():
        for rank in range(distance, ranks, 2 * distance):
            builder.send(rank - distance, rank, 0, 1, reduce=False)
    return builder.build()
