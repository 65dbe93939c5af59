"""What a scheme is told of the job whose schedule it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.bucketing.assign import Parameter
from ddpsim.errors import PlanError
from ddpsim.operations import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeInputs:
    """A model, the buckets its gradients are in, and how many ranks train it.

    Attributes:
        parameters: in registration order.
        buckets: registration indices of each bucket, in launch order, as the job's caps have it.
        world_size: ranks.
        every: of how many iterations the last one sends gradients.
        ready_s: by parameter, when its gradient is ready, from the start of backward; absent where it never is. Empty
            where nobody knows: gradients then come in the order of the buckets.
        use_s: by parameter, when forward first needs it, from the start of forward; empty where nobody knows: forward
            then needs parameters in registration order.
        accumulate: iterations of a step of the optimizer, where all are counted.
        ranks_per_node: consecutive ranks of one node.
        update_s: what the optimizer takes for all parameters; 0 where nobody knows.
        time_s: what an operation of so many bytes takes on the job's machine; None where nobody knows.
        control_s: what hosts take to sum so many bytes by a library's name, `mpi` or `gloo`; None where nobody knows.
        blocking: whether the host waits for a collective as torch's `wait` does on gloo: until it has ended, where on
            NCCL the device's stream does.
    """

    parameters: Sequence[Parameter]
    buckets: Sequence[tuple[int, ...]]
    world_size: int
    every: int = 1
    accumulate: int = 1
    ranks_per_node: int = 1
    update_s: float = 0.0
    ready_s: Mapping[int, float] = field(default_factory=dict)
    use_s: Mapping[int, float] = field(default_factory=dict)
    time_s: Callable[[Operation, int], float] | None = None
    control_s: Callable[[str, int], float] | None = None
    blocking: bool = False

    def check_parameters(self, scheme: str) -> None:
        """Raise PlanError where there is no parameter, of which `scheme` could gather any."""
        if not self.parameters:
            what, remedy = "the model has no parameters to shard", "give one that has, or use `scheme=ddp`"
            raise PlanError(what, place=f"scheme {scheme!r}", remedy=remedy)

    def check_sums_are_steps(self, scheme: str, why: str) -> None:
        """Raise PlanError, with `why`, where a step of the optimizer has several iterations that send gradients."""
        if self.accumulate > self.every:
            place, remedy = f"scheme {scheme!r}", "leave out `sync=every`, or accumulate nothing"
            raise PlanError(f"{why}, of {self.accumulate} micro-batches a step", place=place, remedy=remedy)

    def size_bytes(self, parameters: Sequence[int]) -> int:
        """Return the bytes of `parameters`, and of their gradients."""
        return sum(self.parameters[index].size_bytes for index in parameters)

    def first_use(self, parameters: Sequence[int]) -> float:
        """Return when forward first needs one of `parameters`: seconds, or where unknown a place in the order."""
        return min(self.use_s.get(index, float(index) if not self.use_s else float("inf")) for index in parameters)

    def last_ready(self, parameters: Sequence[int]) -> float:
        """Return when the gradients of `parameters` are all there: seconds, or where unknown a place in the order."""
        if self.ready_s:
            return max((self.ready_s.get(index, 0.0) for index in parameters), default=0.0)
        places = {index: place for place, bucket in enumerate(self.buckets) for index in bucket}
        return float(max((places[index] for index in parameters), default=0))

    def arrivals(self) -> list[int]:
        """Return the parameters that have gradients in the order in which those come."""
        if self.ready_s:
            return sorted(self.ready_s, key=lambda index: (self.ready_s[index], -index))
        return [index for bucket in self.buckets for index in bucket]

    def in_forward_order(self, groups: Sequence[tuple[int, ...]]) -> list[int]:
        """Return the places of `groups` in the order in which forward first needs one of each."""
        return sorted(range(len(groups)), key=lambda place: (self.first_use(groups[place]), -place))


Setup = SchemeInputs
"""The name of this class in earlier versions, kept for one release."""
