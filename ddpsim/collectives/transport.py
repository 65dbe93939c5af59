"""What the simulation asks of a transport: the cost of a collective as one demand, and its steps one by one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.network.fairness import Demand, LinkId
from ddpsim.collectives.schedules import TransferSchedule
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


@dataclass(frozen=True, slots=True)
class Connection:
    """The way from one participant of a schedule to another.

    Attributes:
        latency_s: from the moment the source has the data to the first byte on the links.
        loads: bytes on each link per byte sent.
        rate_limit: bytes per second the ends can do.
        host_limit: bytes per second that threads of the ends keep up with; busy processors lower it.
        weight: share of a link against other connections of its lane.
    """

    latency_s: float
    loads: Mapping[LinkId, float]
    rate_limit: float = math.inf
    host_limit: float = math.inf
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ChannelSchedule:
    """One schedule, carried out on its own part of the message.

    Attributes:
        chunk_bytes: bytes of one chunk.
        connections: the way from source to target participant.
        window: transfers a pair may have under way, the ones still in their latency included.
        weight: share of a link against other traffic.
    """

    schedule: TransferSchedule
    chunk_bytes: float
    connections: Mapping[tuple[int, int], Connection]
    window: int = 1
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps are a collective as its single transfers, in lanes that run side by side after a launch.

    Attributes:
        launch_s: before the first transfer may start.
        capacities: bytes per second of links that only these transfers load.
    """

    launch_s: float
    lanes: tuple[ChannelSchedule, ...]
    capacities: Mapping[LinkId, float] = field(default_factory=dict)

    @property
    def transfers(self) -> int:
        """How many transfers they are, of all lanes."""
        return sum(len(lane.schedule.transfers) for lane in self.lanes)


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
