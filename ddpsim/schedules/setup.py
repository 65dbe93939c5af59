"""`SchemeInputs`: what a scheme gets to know of a job; and sums of gradients, of which most schedules are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.bucketing.assign import FrozenParameter, Parameter
from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import PointKind, points


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeInputs:
    """A model, the buckets its gradients are in, and how many ranks train it.

    Attributes:
        parameters: those that take a gradient, in registration order.
        frozen: those that take none; as indices of parameters, theirs follow.
        buckets: registration indices of each bucket, in launch order, as the job's caps have it.
        world_size: ranks.
        every: of how many iterations the last one sends gradients.
        ready_s: by parameter, when its gradient is ready, from the start of backward; absent where it never is. Empty
            where unknown: gradients then come in the order of the buckets.
        use_s: by parameter, when forward first needs it, from the start of forward; empty where unknown: forward
            then needs parameters in registration order.
        accumulate: iterations of a step of the optimizer, where all are counted.
        ranks_per_node: consecutive ranks of one node.
        update_s: what the optimizer takes for all parameters; 0 where unknown.
        time_s: what an operation of so many bytes takes on the job's machine; None where unknown.
        control_s: what hosts take to sum so many bytes by a library's name, `mpi` or `gloo`; None where unknown.
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
    frozen: Sequence[FrozenParameter] = ()

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """Those that take a gradient, and behind them the frozen ones."""
        return (*self.parameters, *self.frozen)

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
        everything = self.all_parameters
        return sum(everything[index].size_bytes for index in parameters)

    def first_use(self, parameters: Sequence[int]) -> float:
        """Return when forward first needs one of `parameters`: seconds, or where unknown a place in the order."""
        if self.use_s:
            return min(self.use_s.get(index, float("inf")) for index in parameters)
        count, behind = len(self.parameters), len(self.frozen)
        places = [each.before - (behind - place) / (behind + 1) for place, each in enumerate(self.frozen)]
        return min(float(index) if index < count else places[index - count] for index in parameters)

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

    def last_before(self, frozen: Sequence[int]) -> int | None:
        """Return the parameter behind whose gradient backward comes to `frozen` ones: that forward needs next.

        None where it does not: nothing that forward needs before them takes a gradient. Where nothing behind them takes
        one, backward comes to them before the first of all, which is returned.
        """
        begins, came = self.first_use(frozen), self.arrivals()
        if begins <= self.first_use(range(len(self.parameters))):
            return None
        uses = {index: use for index in reversed(came) if (use := self.first_use((index,))) > begins}
        return min(uses, key=uses.__getitem__, default=came[0])

    def next_behind(self, frozen: Sequence[int]) -> int:
        """Return the parameter whose gradient comes first once backward has passed `frozen` ones, which it comes to."""
        begins = self.first_use(frozen)
        return next(index for index in self.arrivals() if self.first_use((index,)) < begins)

    def in_backward_order(self, units: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return `units` of parameters in the order in which backward enters them: each before its first gradient.

        Frozen ones come before the one that forward needs before them; those that backward never comes to are last.
        """
        came = {index: place for place, index in enumerate(self.arrivals())}
        uses = {unit: self.first_use(unit) for unit in units}
        first: dict[tuple[int, ...], int] = {}
        for unit in units:
            if trained := [index for index in unit if index < len(self.parameters)]:
                first[unit] = min(came.get(index, len(came)) for index in trained)

        def place(unit: tuple[int, ...]) -> tuple[float, float]:
            if unit in first:
                return first[unit], 0.0
            needed_before = (other for other in first if uses[other] < uses[unit])
            nearest = max(needed_before, key=uses.__getitem__, default=None)
            return (float("inf") if nearest is None else first[nearest] - 0.5), -uses[unit]

        return sorted(units, key=place)

    def in_forward_order(self, groups: Sequence[tuple[int, ...]]) -> list[int]:
        """Return the places of `groups` in the order in which forward first needs one of each."""
        return sorted(range(len(groups)), key=lambda place: (self.first_use(groups[place]), -place))


Setup = SchemeInputs
"""The name of this class in earlier versions, kept for the schemes that people have written."""


def sums(
    setup: SchemeInputs,
    groups: Iterable[tuple[int, ...]],
    name: str = "bucket",
    operation: Operation = Operation.ALLREDUCE,
) -> list[Message]:
    """Return a message a group, which can begin when all of it is there and blocks nothing yet.

    Args:
        groups: registration indices of the gradients that go together.
        name: of the messages, with a number behind.
        operation: by which they are summed.
    """
    return [
        Message(
            id=f"{name} {place}",
            op=operation,
            size_bytes=setup.size_bytes(group),
            parameters=group,
            after=points(PointKind.GRADIENT, group),
            every=setup.every,
        )
        for place, group in enumerate(groups)
    ]
