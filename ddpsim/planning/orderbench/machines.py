"""Where an order trace is replayed: a machine, at a pace that sets communication beside backward."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.common.options.option import positive
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.graph import Cluster, Placement
from ddpsim.topology.placement import place
from ddpsim.workload.order_trace import OrderTrace

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """A topology, and how long its communication takes beside backward.

    Attributes:
        topology: one rank a node, as many nodes as the trace has ranks.
        wire_over_backward: what all buckets, one after another, take over what backward does; computation is scaled so.
            None keeps the recorded pace.
        calibration: measured constants; None is the priors.
    """

    topology: Cluster
    wire_over_backward: float | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if self.wire_over_backward is not None:
            positive("wire_over_backward", self.wire_over_backward)

    @property
    def name(self) -> str:
        """The topology's name, with the ratio where there is one."""
        ratio = self.wire_over_backward
        return self.topology.name if ratio is None else f"{self.topology.name} at {ratio:g}"

    def placement(self, trace: OrderTrace) -> Placement:
        """Return where the ranks of `trace` are."""
        return place(self.topology, trace.ranks, 1)

    def scale(self, trace: OrderTrace, caps: BucketCaps) -> float:
        """Return the factor on computation that gives the ratio."""
        if self.wire_over_backward is None:
            return 1.0
        first = trace.workloads[0]
        transport = make_transport(self.placement(trace), Options().backend_for(first), self.calibration)
        plan = rebuilt_plan(trace.parameters, caps)
        wire_s = sum(transport.time_s(Operation.ALLREDUCE, bucket.size_bytes) for bucket in plan.buckets)
        return wire_s / self.wire_over_backward / float(first.backward.host_s.mean())


def caps_for(trace: OrderTrace, buckets: int) -> BucketCaps:
    """Return the cap that cuts the gradients of a trace into about so many buckets.

    Recorded models are small; torch's 25 MiB would put all of one into one bucket, of a large model into a dozen.
    """
    return BucketCaps(bucket_cap_mb=round(trace.workloads[0].gradient_bytes / MIB / buckets, 6))
