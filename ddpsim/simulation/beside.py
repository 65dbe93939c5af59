"""What collectives in flight take from the computation beside them.

A channel is a block of threads that keeps a multiprocessor to itself, and the bytes that a rank sends are read and
written in its memory. So computation that is bound by arithmetic has M - c of M multiprocessors left, and that which is
bound by memory what the collective leaves of its bandwidth: a GPU with more of both pays less. Kernels are cut to fill
all multiprocessors in whole waves, so that some take a wave more however few are missing: the tail.

Where somebody measured or gave `compute_slowdown`, that is the factor, whatever the collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddpsim.collectives.transport import Transport
from ddpsim.operations import Operation
from ddpsim.simulation.costs import Costs
from ddpsim.workload import Workload
from ddpsim.workload.gpus import GPUS, AchievedGpu, gpu_of

UNKNOWN_GPU = "A100"
"""Whose multiprocessors and bandwidth stand for those of a GPU that nobody described."""

_MOST = 0.9
"""Share of a GPU that collectives take at most: the scheduler leaves computation some blocks."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a GPU says which part of its multiprocessors and of its memory's bandwidth something takes."""

    multiprocessors: float
    bandwidth: float

    def __add__(self, other: Share) -> Share:
        return Share(self.multiprocessors + other.multiprocessors, self.bandwidth + other.bandwidth)


NOTHING = Share(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Beside:
    """What collectives cost a rank's computation while they are in flight.

    Attributes:
        fixed: the factor of any number of them, where it was measured or given; None derives it from their shares.
        share: of the GPU, that a message of some bytes takes.
        arithmetic_share: share of computing time that multiprocessors bound; memory bounds the rest.
        tail_share: by which part of its time such computation takes longer while any multiprocessor is missing.
        of_lane: the share of another operation than an allreduce, or of a process group beside that of all ranks;
            None takes that of an allreduce.
    """

    fixed: float | None
    share: Callable[[int], Share]
    arithmetic_share: float = 1.0
    tail_share: float = 0.0
    of_lane: Callable[[int, Operation, int], Share] | None = None

    @classmethod
    def of(
        cls,
        costs: Costs,
        workload: Workload,
        transport: Transport,
        ranks: int,
        lanes: Sequence[tuple[Transport, int]] = (),
    ) -> Beside:
        """Return what collectives of `transport` cost `workload`, which a calibration may have measured.

        Args:
            lanes: transport and ranks of each lane of a schedule.
        """
        if costs.compute_slowdown_known or not costs.takes:
            return cls(costs.compute_slowdown, lambda size_bytes: NOTHING)
        gpu = gpu_of(workload.gpu, workload.provenance) or GPUS[UNKNOWN_GPU]
        known: dict[int, Share] = {}

        def share(size_bytes: int) -> Share:
            if size_bytes not in known:
                known[size_bytes] = share_of(costs, gpu, transport, ranks, size_bytes)
            return known[size_bytes]

        shares: dict[tuple[int, Operation, int], Share] = {}

        def of_lane(size_bytes: int, operation: Operation, lane: int) -> Share:
            key = (size_bytes, operation, lane)
            if key not in shares:
                shares[key] = share_of(costs, gpu, *lanes[lane], size_bytes, operation)
            return shares[key]

        return cls(None, share, workload.arithmetic_share, costs.tail_share, of_lane if lanes else None)

    @property
    def neutral(self) -> bool:
        """Whether computation never feels a collective."""
        return self.fixed == 1.0

    def taken(self, size_bytes: int, operation: str, lane: int) -> Share:
        """Return what a collective takes; what is no operation of a schedule counts as an allreduce."""
        if self.of_lane is None or not isinstance(operation, Operation):
            return self.share(size_bytes)
        return self.of_lane(size_bytes, operation, lane)

    def factor(self, taken: Share) -> float:
        """Return the factor on computing time while collectives take `taken`."""
        if self.fixed is not None:
            return self.fixed
        bound, rest = self.arithmetic_share, 1 - self.arithmetic_share
        waves = 1 / (1 - min(taken.multiprocessors, _MOST)) + (self.tail_share if taken.multiprocessors > 0 else 0.0)
        return bound * waves + rest / (1 - min(taken.bandwidth, _MOST))


UNDISTURBED = Beside(1.0, lambda size_bytes: NOTHING)


def share_of(
    costs: Costs,
    gpu: AchievedGpu,
    transport: Transport,
    ranks: int,
    size_bytes: int,
    operation: Operation = Operation.ALLREDUCE,
) -> Share:
    """Return the share of `gpu` that an operation of `size_bytes` takes while it is on its way.

    A ring sends 2(n-1)/n of an allreduce's message on each rank, a tree hardly more; a switch that adds gets it once.
    """
    if ranks == 1 or size_bytes == 0:
        return NOTHING
    choice = transport.choice(size_bytes, operation)
    sent = 1.0 if choice.algorithm.startswith("nvls") else operation.sent(ranks)
    traffic_bps = costs.memory_passes * sent * size_bytes / transport.time_s(operation, size_bytes)
    multiprocessors = gpu.spec.multiprocessors or GPUS[UNKNOWN_GPU].spec.multiprocessors or 1
    return Share(costs.channel_multiprocessors * choice.channels / multiprocessors, traffic_bps / gpu.memory_Bps)
