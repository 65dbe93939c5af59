"""ZeRO as DeepSpeed carries it out, which differs from its paper in what is reduced when, and how.

A function a stage: `zero0` to `zero3`; of the last, `_Fetching` is what is gathered when.

Source: github.com/deepspeedai/DeepSpeed, `deepspeed/runtime/zero/`: `stage_1_and_2.py` @7dee2e061c20,
`stage3.py` @ea78ab6863441, `partitioned_param_coordinator.py` @641d86faa55b; `overlap_comm` is on.

- Buckets are counted in elements, 5e8 by default: many models have one or two, the last of which is sent when backward
  has ended (`reduce_independent_p_g_buckets_and_remove_grads`). A bucket leaves when the gradient comes that it has no
  room for.
- Stages 1 and 2 allreduce a bucket and keep their part of it (`allreduce_and_scatter`); both hook every gradient, so
  that they differ in nothing that is sent. After the step, parameters are gathered whole (`all_gather_dp_groups`).
- Stage 3 gathers a module's parameters before it computes and prefetches as many of the next as `prefetch_bucket_size`;
  each module waits for every all-gather launched before it, those prefetched for later ones too
  (`fetch_sub_module`: the stream waits for the all-gathers' whole stream). It keeps what is used again soon. Small
  parameters are never sharded. Buckets are reduce-scattered.
- Without ZeRO ("stage 0") gradients are allreduced after backward (`buffered_allreduce_fallback`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddpsim.common.operation import Operation
from ddpsim.common.suboptions import elements, value
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind, points
from ddpsim.schedules.precision import Precision, dtype_named
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.schedules.units import modules_of

_AHEAD = 2
"""Modules by which the host may be ahead of the device (`__max_ongoing_fetch_events` of the coordinator)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed:
    """DeepSpeed's configuration of ZeRO, by its own names, in elements.

    Attributes:
        reduce_bucket_size: most in a bucket of gradients.
        allgather_bucket_size: most in an all-gather after the step.
        prefetch_bucket_size: at least so many are prefetched at a module, where so many are left.
        param_persistence_threshold: a parameter of no more is never sharded.
        max_live_parameters: most gathered at once by prefetching.
        max_reuse_distance: what is used again within so many is not given up.
        reduce: dtype in which gradients are reduced; None is their own.
    """

    reduce_bucket_size: int = value(elements, 500_000_000)
    allgather_bucket_size: int = value(elements, 500_000_000)
    prefetch_bucket_size: int = value(elements, 50_000_000)
    param_persistence_threshold: int = value(elements, 100_000)
    max_live_parameters: int = value(elements, 1_000_000_000)
    max_reuse_distance: int = value(elements, 1_000_000_000)
    reduce: str | None = value(dtype_named)

    @property
    def precision(self) -> Precision:
        """The precision of what is sent."""
        return Precision(reduce=self.reduce)


def zero0(setup: SchemeInputs, config: DeepSpeed) -> Schedule:
    """DeepSpeed without ZeRO: allreduces of whole buffers of gradients after backward."""
    buckets = [bucket for bucket, _ in _buckets(setup, range(len(setup.parameters)), config)]
    messages = tuple(
        replace(
            _reduction(setup, number, config, Operation.ALLREDUCE, [(bucket, None)]),
            after=(*points(PointKind.GRADIENT, bucket), BACKWARD_END),
            blocks=points(PointKind.OPTIMIZER, bucket),
        )
        for number, bucket in enumerate(buckets)
    )
    sharding = Sharding(staging_bytes=0, master=True)
    return Schedule(scheme="zero0", messages=messages, sharding=sharding, broadcasts_buffers=False)


def zero1(setup: SchemeInputs, config: DeepSpeed) -> Schedule:
    """Stage 1: buckets allreduced under backward, each rank updates its part, parameters gathered after the step."""
    return replace(zero2(setup, config), scheme="zero1:deepspeed")


def zero2(setup: SchemeInputs, config: DeepSpeed) -> Schedule:
    """Stage 2, which sends and keeps what stage 1 does.

    When a bucket is launched the compute stream waits for those launched before (`average_tensor`): each holds up what
    is computed behind the next but one's beginning.
    """
    buckets = list(_buckets(setup, setup.arrivals(), config))
    reductions = [
        _reduction(setup, number, config, Operation.ALLREDUCE, buckets[number : number + 3])
        for number in range(len(buckets))
    ]
    # Parameters are gathered as a whole in pieces of `allgather_bucket_size`, before the next forward begins.
    everything = tuple(range(len(setup.parameters)))
    total, elements = setup.size_bytes(everything), _elements(setup, everything)
    element_bytes = total // elements
    whole = Message(
        id="gather",
        op=Operation.ALL_GATHER,
        size_bytes=total,
        parameters=everything,
        after=points(PointKind.UPDATED, everything),
        blocks=points(PointKind.FORWARD, everything),
        segment_bytes=-(-total // max(1, elements // config.allgather_bucket_size)),
        every=setup.every,
        in_place=True,
    )
    ranks, staging = setup.world_size, 2 * config.reduce_bucket_size * element_bytes
    sharding = Sharding(gradients=ranks, optimizer=ranks, staging_bytes=staging, master=True)
    messages = (*reductions, *whole.segments(element_bytes))
    return Schedule(scheme="zero2:deepspeed", messages=messages, sharding=sharding, broadcasts_buffers=False)


def zero3(setup: SchemeInputs, config: DeepSpeed) -> Schedule:
    """Stage 3: parameters gathered module by module, gradients reduce-scattered bucket by bucket.

    Raises:
        PlanError: a model without parameters.
    """
    setup.check_parameters("zero3")
    # The coordinator's trace: modules as forward and then backward enter them. At each of its steps what has to be
    # there is gathered, and what comes next as far as the prefetch bucket lasts.
    modules = sorted(modules_of(setup.all_parameters), key=setup.first_use)
    trace = [
        _Step(PointKind.FORWARD, each, min(each, key=lambda i: setup.first_use((i,))), points(PointKind.FORWARD, each))
        for each in modules
    ]
    trace += _trace_backward(setup, modules)
    fetching = _Fetching(setup, trace, config)
    buckets = list(_buckets(setup, setup.arrivals(), config))
    messages: list[Message] = []
    sent = 0
    for number, step in enumerate(trace):
        messages += fetching.fetch(number)
        # A bucket leaves with the gradient that it has no room for: behind the gathers of that gradient's module.
        while step.kind is PointKind.BACKWARD and sent < len(buckets) and buckets[sent][1] in step.module:
            messages.append(_reduction(setup, sent, config, Operation.REDUCE_SCATTER, buckets[sent : sent + 1]))
            sent += 1
    messages += [
        _reduction(setup, place, config, Operation.REDUCE_SCATTER, buckets[place : place + 1])
        for place in range(sent, len(buckets))
    ]
    # Small parameters are never partitioned again: after a step they are gathered once, all together.
    if small := fetching.kept:
        gather = fetching.gather("gather small", small)
        every = points(PointKind.FORWARD, tuple(range(len(setup.all_parameters))))
        updated = tuple(index for index in small if index < len(setup.parameters)) or range(len(setup.parameters))
        after = points(PointKind.UPDATED, tuple(updated))
        messages.append(replace(gather, after=after, blocks=every, every=setup.every))
    ranks, element_bytes = setup.world_size, setup.parameters[0].size_bytes // max(setup.parameters[0].numel, 1)
    bucket_bytes = config.reduce_bucket_size * element_bytes
    sharding = Sharding(ranks, ranks, ranks, fetching.most_bytes, 0, bucket_bytes, master=True)
    return Schedule(scheme="zero3", messages=tuple(messages), sharding=sharding, broadcasts_buffers=False)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of the trace: a module of which forward or backward is entered at `point`, and waited for at `waits`."""

    kind: PointKind
    module: tuple[int, ...]
    at: int
    waits: tuple[Point, ...]

    @property
    def point(self) -> Point:
        return Point(self.kind, self.at)


def _trace_backward(setup: SchemeInputs, modules: Sequence[tuple[int, ...]]) -> list[_Step]:
    """Return the steps of backward: at a module's first gradient, and at the last one before a frozen module.

    Of several frozen ones it waits for the first there, for the others behind them: between them are no points.
    """
    came, kind = {index: place for place, index in enumerate(setup.arrivals())}, PointKind.BACKWARD
    steps, behind_frozen = list[_Step](), False
    for module in setup.in_backward_order(modules):
        if trained := tuple(index for index in module if index < len(setup.parameters)):
            at = min(trained, key=lambda i: came.get(i, len(came)))
            steps.append(_Step(kind, module, at, points(kind, trained)))
        elif (last := setup.last_before(module)) is not None:
            waits = setup.next_behind(module) if behind_frozen else last
            steps.append(_Step(kind, module, last, (Point(kind, waits),)))
        behind_frozen = not trained
    return steps


class _Fetching:
    """What `PartitionedParameterCoordinator` gathers at each step of a complete trace, and what it gives up.

    Attributes:
        kept: parameters that are never sharded.
        most_bytes: of parameters gathered at once.
    """

    def __init__(self, setup: SchemeInputs, trace: Sequence[_Step], config: DeepSpeed) -> None:
        self._setup, self._trace, self._config = setup, trace, config
        small = config.param_persistence_threshold
        self.kept = tuple(index for index, p in enumerate(setup.all_parameters) if p.numel <= small)
        self._queue = deque((index, number) for number, step in enumerate(trace) for index in step.module)
        self._available = set(self.kept)
        self._fetched_for = dict.fromkeys(range(len(setup.all_parameters)), -1)
        self.most_bytes = 0

    def fetch(self, number: int) -> list[Message]:
        """Return the all-gathers launched at step `number`: of what it lacks, and of what is prefetched."""
        step, messages = self._trace[number], []
        lacking = tuple(index for index in step.module if index not in self._available)
        if lacking:
            gather = self.gather(f"gather {number}", lacking)
            messages.append(replace(gather, after=self._find_launch_points(number, step.waits), blocks=step.waits))
        self._available |= set(lacking)
        expected = {index for index in step.module if self._fetched_for[index] < number}
        while expected:
            index, used = self._queue.popleft()
            self._fetched_for[index] = used
            expected.discard(index)
        if ahead := self._list_prefetched():
            following = self._trace[number + 1]
            gather = self.gather(f"prefetch {number}", ahead)
            after = self._find_launch_points(number, following.waits)
            messages.append(replace(gather, after=after, blocks=following.waits))
        live = self._setup.size_bytes(tuple(self._available.difference(self.kept)))
        self.most_bytes = max(self.most_bytes, live)
        self._release(number)
        return messages

    def gather(self, name: str, parameters: tuple[int, ...]) -> Message:
        """Return the all-gather of `parameters`, which nothing waits for yet."""
        size = self._setup.size_bytes(parameters)
        return Message(id=name, op=Operation.ALL_GATHER, size_bytes=size, parameters=parameters)

    def _find_launch_points(self, number: int, waits: Sequence[Point]) -> tuple[Point, ...]:
        """Return what the device has passed when the host is at step `number`, ahead of it: none of what `waits`."""
        passed = (step.point for step in reversed(self._trace[: max(0, number - _AHEAD + 1)]))
        return next(((point,) for point in passed if point not in waits), ())

    def _list_prefetched(self) -> tuple[int, ...]:
        live = _elements(self._setup, self._available.difference(self.kept))
        most = min(self._config.max_live_parameters - live, self._config.prefetch_bucket_size)
        indices: dict[int, None] = {}
        elements = 0
        while self._queue and elements < most:
            index, used = self._queue.popleft()
            self._fetched_for[index] = max(self._fetched_for[index], used)
            if index not in self._available:
                indices[index] = None
                self._available.add(index)
                elements += _elements(self._setup, (index,))
        return tuple(indices)

    def _release(self, number: int) -> None:
        given_up = {i for i in self._trace[number].module if self._fetched_for[i] <= number} - set(self.kept)
        traversed = 0
        for step in self._trace[number + 1 :] if given_up else ():
            if traversed >= self._config.max_reuse_distance:
                break
            given_up -= set(step.module)
            traversed += _elements(self._setup, step.module)
        self._available -= given_up


def _reduction(
    setup: SchemeInputs,
    number: int,
    config: DeepSpeed,
    operation: Operation,
    buckets: Sequence[tuple[tuple[int, ...], int | None]],
) -> Message:
    """Return what sums the first of `buckets`, the `number`-th of the job; the next one's first launches it."""
    (bucket, following), *later = buckets
    held_up = later[1][0][1:] if len(later) > 1 else ()
    return Message(
        id=f"reduce {number}",
        op=operation,
        size_bytes=sum(config.precision.reduced_bytes(setup.parameters[index]) for index in bucket),
        parameters=bucket,
        after=points(PointKind.GRADIENT, bucket if following is None else (*bucket, following)),
        blocks=(BACKWARD_END, *points(PointKind.BACKWARD, held_up)),
        every=setup.every,
    )


def _buckets(
    setup: SchemeInputs, order: Sequence[int], config: DeepSpeed
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield each bucket of gradients that come in `order`, and the one that it had no room for."""
    bucket: list[int] = []
    elements = 0
    for index in order:
        count = setup.parameters[index].numel
        if bucket and elements + count > config.reduce_bucket_size:
            yield tuple(bucket), index
            bucket, elements = [], 0
        bucket.append(index)
        elements += count
    if bucket:
        yield tuple(bucket), None


def _elements(setup: SchemeInputs, parameters: Iterable[int]) -> int:
    everything = setup.all_parameters
    return sum(everything[index].numel for index in parameters)
