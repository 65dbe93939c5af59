"""What a simulated rank notes: of each parcel that it launched, and of each iteration until the run is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpsim.bucketing import BucketPlan
from ddpsim.simulation.reduction import Reduction
from ddpsim.simulation.traffic import Parcel
from ddpsim.trace.records import BucketTimes, Gradient, Iteration


@dataclass(slots=True)
class Sent:
    """A parcel that was launched, and what has become of it.

    Attributes:
        ready_s: when its last gradient was there.
        awaited: whether the rank has come to where it waits for it.
        written_s: when it had been copied out; None where nothing has waited for it.
    """

    parcel: Parcel
    reduction: Reduction
    ready_s: float = 0.0
    awaited: bool = False
    written_s: float | None = None

    def times(self) -> BucketTimes | None:
        """Return its record; None where the run ended before it did."""
        reduction, written_s = self.reduction, self.written_s
        if written_s is None and (written_s := reduction.finished_s) is None:
            return None
        finished = reduction.finished_s if reduction.finished_s is not None else written_s
        return BucketTimes(
            index=self.parcel.number,
            size_bytes=self.parcel.size_bytes,
            parameters=self.parcel.parameters,
            ready_s=self.ready_s,
            launched_s=reduction.launched_s,
            started_s=finished if reduction.started_s is None else reduction.started_s,
            wire_s=reduction.wire_s,
            finished_s=finished,
            written_s=written_s,
            operation=self.parcel.operation,
        )


@dataclass(slots=True)
class Book:
    """What one iteration has noted so far; becomes an `Iteration` when the run is over.

    `aside_s` is what forward was held up by: waits, copies, the optimizer.
    """

    index: int
    plan: BucketPlan
    start_s: float
    end_s: float = 0.0
    forward_s: float = 0.0
    aside_s: float = 0.0
    backward_compute_s: float = 0.0
    exposed_comm_s: float = 0.0
    buffer_broadcast_s: float = 0.0
    optimizer_s: float = 0.0
    input_s: float | None = None
    gradients: list[Gradient] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def close(self, rank: int, *, synced: bool, stepped: bool) -> Iteration:
        """Return the finished record."""
        return Iteration(
            rank=rank,
            index=self.index,
            start_s=self.start_s,
            end_s=self.end_s,
            forward_s=self.forward_s,
            backward_compute_s=self.backward_compute_s,
            exposed_comm_s=self.exposed_comm_s,
            buffer_broadcast_s=self.buffer_broadcast_s,
            optimizer_s=self.optimizer_s,
            held_up_s=self.aside_s,
            input_s=self.input_s,
            synced=synced,
            stepped=stepped,
            buckets=tuple(times for sent in self.sent if (times := sent.times()) is not None),
            gradients=tuple(self.gradients),
        )
