"""The seam between a simulation and a library: what a collective costs, as one demand or transfer by transfer.

A `Transport` is a library on a placement. `RankPaths` are the library's ways between any two ranks, over which
transports of patterns, all-to-alls and sends are made (`TransportOverPaths`), whichever library it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.network.fairness import Demand, LinkId
from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.schedules import Connection, Steps
from ddpsim.common.operation import Operation


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """How a collective of some size is carried out.

    Attributes:
        algorithm: ring, tree, nvls, ...
        protocol: simple, ll, ll128 for NCCL; tcp for gloo.
        channels: parallel copies of the pattern, each with its part of the message.
    """

    algorithm: str
    protocol: str
    channels: int = 1


class Transport(ABC):
    """A backend on one placement: what a collective costs there.

    Attributes:
        backend: `nccl` or `gloo`.
        calibration: the constants in force.
        capacities: bytes per second of each link that the demands load.
        streams_per_group: collectives in flight a process group.
        hops: kinds of hops of NCCL's ring, of `ddpsim.collectives.nccl.loads.GROUPS`, with what a byte takes on each,
            over what it takes on the slowest; empty of other transports.
    """

    __slots__ = ()

    backend: str
    calibration: Calibration
    capacities: Mapping[LinkId, float]
    streams_per_group: int
    hops: Mapping[str, float]

    @abstractmethod
    def choice(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> AlgorithmChoice:
        """Return how an operation of `size_bytes` is carried out."""

    @abstractmethod
    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the demand of an operation of `size_bytes` on every rank, of a rooted one from or to rank 0."""

    @abstractmethod
    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the time of that demand with nothing else in flight."""

    @abstractmethod
    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return the operation as its single transfers."""

    def transfers(self, operation: Operation, size_bytes: int) -> int:
        """Return of how many single transfers an operation is."""
        return self.steps(operation, size_bytes).transfers

    def threads_share(self, demand: Demand) -> float:
        """Return for which part of the time of a demand's bytes threads of the ends set the pace, rather than links."""
        return float(self.backend == "gloo" and demand.limit < demand.alone_rate(self.capacities))

    def allreduce(self, size_bytes: int) -> Demand:
        """Return the demand of an allreduce."""
        return self.demand(Operation.ALLREDUCE, size_bytes)

    def allreduce_s(self, size_bytes: int) -> float:
        """Return the time of an allreduce with nothing else in flight."""
        return self.time_s(Operation.ALLREDUCE, size_bytes)


class RankPaths(ABC):
    """Finds the ways between ranks of a placement in which every node has links of its own.

    Attributes:
        backend: `nccl` or `gloo`, by whose name its constants are called.
        protocol: how the bytes are sent.
        streams_per_group: collectives in flight a process group.
        calibration: the constants in force.
        capacities: bytes per second of every link on a way asked for so far.
    """

    backend: str
    protocol: str
    streams_per_group: int

    def __init__(self, wiring: PlacementLinks, calibration: Calibration) -> None:
        self.wiring, self.calibration = wiring, calibration
        self.capacities: dict[LinkId, float] = {}

    @abstractmethod
    def start_s(self, size_bytes: int) -> float:
        """Return the time before the first transfer of a message of `size_bytes`."""

    @abstractmethod
    def connection(self, source: int, target: int) -> Connection:
        """Return the way from one rank to another."""

    def constant(self, name: str) -> float:
        """Return the backend's constant of that name."""
        return self.calibration[f"{self.backend}.{name}"]

    def place(self, rank: int) -> tuple[int, str]:
        """Return the node of a rank, and its GPU there."""
        node, index, kind = self.wiring.placement.node_of(rank)
        return node, self.wiring.placement.gpus(kind)[index]


class TransportOverPaths(Transport):
    """A transport over the ways between ranks of a backend, whose constants and links it has."""

    hops: Mapping[str, float] = MappingProxyType({})

    def __init__(self, ways: RankPaths) -> None:
        self._ways, self.backend, self.calibration = ways, ways.backend, ways.calibration
        self.streams_per_group, self.capacities = ways.streams_per_group, ways.capacities
