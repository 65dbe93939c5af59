"""The iterations of a Kineto trace: phases, gradients, and what of it all is DDP's own work.

DDP's part is cut out of the host's time line interval by interval: the broadcast of buffers at the start of forward,
what follows each gradient's accumulation inside autograd's node (the hook), and the end of backward.

Start at `find_steps`; `HostStep` is what the other files read, `_step` how one is made of a micro-batch's events.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ddpsim.common.errors import TraceError
from ddpsim.workload.kineto.events import BROADCAST_OPERATORS, DeviceWork, Events, HostEvent, dtype_named

NODE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
"""How traces call what autograd's engine runs, and the node that hands a gradient to its parameter."""

_DDP_FORWARD = "DistributedDataParallel.forward"
_FORWARD = ("aten::", _DDP_FORWARD, "FSDP::", "FullyShardedDataParallel.forward")
_FSDP_END = "FSDP::root_post_backward_callback"
"""Outside of autograd's nodes: what shows that a forward runs, and what does not."""
_REDUCER_MARKS = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::")
_DDP_MARKS = (*_REDUCER_MARKS, "c10d::")
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_ALIKE = 0.8
"""Share of their gradients that micro-batches of one step have in common at least: some leave branches out; by hand."""
_SHORT_WAIT_S = 50e-6
"""A wait for an event shorter than this found it done."""


@dataclass(frozen=True, slots=True)
class HostInterval:
    """A stretch of the host's time, in seconds on the trace's clock."""

    start_s: float
    end_s: float


class Cut:
    """The host's time line without DDP's intervals, which must not overlap."""

    def __init__(self, intervals: Iterable[HostInterval]) -> None:
        self._intervals = sorted(intervals, key=lambda interval: interval.start_s)
        self._starts = [interval.start_s for interval in self._intervals]
        self._sums = [0.0, *accumulate(interval.end_s - interval.start_s for interval in self._intervals)]

    def moment(self, moment_s: float) -> float:
        """Return `moment_s` as it would have been without what DDP did before it."""
        index = bisect_right(self._starts, moment_s)
        removed = self._sums[index]
        if index and moment_s < (end := self._intervals[index - 1].end_s):
            removed -= end - moment_s
        return moment_s - removed

    def holds(self, moment_s: float) -> bool:
        """Whether `moment_s` is DDP's."""
        index = bisect_right(self._starts, moment_s) - 1
        return index >= 0 and moment_s < self._intervals[index].end_s


@dataclass(frozen=True, slots=True)
class BucketAllreduce:
    """A bucket's allreduce, which the host launched in backward.

    Attributes:
        launched_s: the call's start.
        after: gradients that had arrived by then.
        elements: summed by it; None where the trace does not say.
        dtype: of what it summed, as torch names it; likewise.
    """

    launched_s: float
    after: int
    elements: int | None
    dtype: str | None


@dataclass(frozen=True, slots=True)
class HostStep:
    """One micro-batch as the host ran it: a whole step, where gradients are not accumulated over several.

    Attributes:
        name: the annotation's.
        forward_s, backward_s, backward_end_s: starts of forward and backward, end of backward's computation.
        optimizer: what the optimizer took, `zero_grad` included.
        accumulations: one a gradient, in order: the accumulation proper, without hooks.
        ddp: what of the host's time was DDP's.
        collectives: allreduces of DDP's buckets in launch order; none in a step without DDP.
        hooked: when its hooks called a collective: those, and the bitmap of unused parameters.
        reducer: whether DDP is in it, torch's or one that marks its forward as torch's does.
        waits: calls in which the host waited for the device.
        end_s: end of the iteration.
        number, count: of the step's micro-batches this is one, the first is 0.
    """

    name: str
    forward_s: float
    backward_s: float
    backward_end_s: float
    optimizer: Sequence[HostInterval]
    accumulations: Sequence[HostEvent]
    ddp: Sequence[HostInterval]
    collectives: Sequence[BucketAllreduce]
    waits: Sequence[HostEvent]
    end_s: float
    hooked: Sequence[float] = ()
    reducer: bool = False
    number: int = 0
    count: int = 1

    @property
    def held(self) -> tuple[float, float]:
        """The first and the last moment that are of a phase."""
        spans = [(self.forward_s, self.backward_end_s), *((i.start_s, i.end_s) for i in self.optimizer)]
        return min(start_s for start_s, _ in spans), max(end_s for _, end_s in spans)

    def phase_of(self, moment_s: float) -> str | None:
        """Return the phase in which the host was at `moment_s`, None between phases."""
        if any(interval.start_s <= moment_s < interval.end_s for interval in self.optimizer):
            return "optimizer"
        if self.backward_s <= moment_s <= self.backward_end_s:
            return "backward"
        return "forward" if self.forward_s <= moment_s < self.backward_s else None


def find_steps(events: Events, place: str) -> list[HostStep]:
    """Return the micro-batches of the trace's complete iterations, one each where gradients are not accumulated.

    Raises:
        TraceError: no annotations that mark iterations, or no iteration with a backward in it.
    """
    windows = [event for event in events.operators if "ProfilerStep#" in event.name]
    updates = [event for event in events.operators if event.name.startswith(_OPTIMIZER[0])]
    if not windows:
        # A loop that never calls the profiler's step(): an iteration is from the end of one update to that of the
        # next.
        ends = pairwise([0.0, *(update.end_s for update in updates)])
        windows = [
            HostEvent(f"step {n}", start_s, end_s, update.thread, {})
            for n, ((start_s, end_s), update) in enumerate(zip(ends, updates, strict=True))
        ]
    if not windows:
        remedy = "record it with torch.profiler, call its step() after each iteration"
        raise TraceError(
            "no iterations: neither ProfilerStep# nor Optimizer.step# is in it", place=place, remedy=remedy
        )
    starts = [event.start_s for event in events.operators]
    # DDP's own timers wait for an event, which they find done.
    waited = [
        wait
        for wait in events.waits
        if not wait.name.endswith("EventSynchronize") or wait.end_s - wait.start_s > _SHORT_WAIT_S
    ]
    steps = []
    for window in _join_to_updates(sorted(windows, key=lambda window: window.start_s), events, updates):
        inside = events.operators[bisect_left(starts, window.start_s) : bisect_left(starts, window.end_s)]
        begins = _list_micro_batches(inside, window)
        begun = [event.start_s for event in inside]
        for number, (begin_s, end_s) in enumerate(pairwise([*begins, window.end_s])):
            waits = [wait for wait in waited if begin_s <= wait.start_s < end_s]
            part = inside[bisect_left(begun, begin_s) : bisect_left(begun, end_s)]
            if (step := _step(window.name, end_s, part, waits, number, len(begins))) is not None:
                steps.append(step)
    if not steps:
        remedy = "record CPU activity over whole training iterations"
        raise TraceError("no iteration has gradients: no AccumulateGrad operator in it", place=place, remedy=remedy)
    return steps


def micro_batches_of(steps: Iterable[HostStep]) -> list[list[HostStep]]:
    """Return the micro-batches of each step; `steps` are in order."""
    groups: list[list[HostStep]] = []
    for step in steps:
        if not groups or step.number == 0 or step.name != groups[-1][0].name:
            groups.append([])
        groups[-1].append(step)
    return groups


def describe_accumulation(accumulate: int, reducing: int) -> str:
    """Return over how many micro-batches a step accumulates gradients, and how many of them reduce those, in words."""
    how = {0: "", 1: ", reduced in one", accumulate: ", reduced in each"}.get(reducing, f", reduced in {reducing}")
    return f"gradients are accumulated over {accumulate} micro-batches a step{how}"


def _join_to_updates(windows: Sequence[HostEvent], events: Events, updates: Sequence[HostEvent]) -> Iterator[HostEvent]:
    """Yield the windows with a backward, each joined with those before it whose gradients its optimizer takes too.

    A loop may call the profiler's step() after each micro-batch. What has no optimizer behind it is left out.
    """
    moments = [[e.start_s for e in events.operators if e.name == ACCUMULATE], [update.start_s for update in updates]]
    begin_s = None
    for window in windows:
        gradients, stepped = (bisect_left(each, window.end_s) > bisect_left(each, window.start_s) for each in moments)
        if not gradients:
            begin_s = None
            continue
        begin_s = window.start_s if begin_s is None else begin_s
        if stepped or not updates:
            yield window._replace(start_s=begin_s)
            begin_s = None


def _list_micro_batches(inside: Sequence[HostEvent], window: HostEvent) -> list[float]:
    """Return where the micro-batches of a step begin, by its passes of backward between which a forward runs.

    They are micro-batches where they give the same gradients, all for one step of the optimizer. Passes that do not, as
    of a generator and its critic, repeat as one where the loop accumulates.
    """
    # `passes` counts the gradients of each pass of backward by their shapes. `over_s` is when backward was last at
    # work, and `gap_s` where a forward may have begun since: the first operator of the loop's own thread behind it.
    # Only when another node of backward comes is it known to have been a forward, and a micro-batch begins there.
    begins, passes, over_s = [window.start_s], [Counter[str]()], window.start_s
    gap_s, updated = None, False
    for event in inside:
        if event.name.startswith(NODE):
            if gap_s is not None and passes[-1]:
                begins.append(gap_s)
                passes.append(Counter())
            gap_s, over_s = None, max(over_s, event.end_s)
        elif event.name == ACCUMULATE:
            if updated:
                return begins[:1]
            passes[-1][str(event.args.get("Input Dims"))] += 1
        elif event.name.startswith((*_DDP_MARKS, _FSDP_END)):
            over_s = max(over_s, event.end_s)
        elif event.name.startswith(_OPTIMIZER):
            updated = bool(passes[0])
        elif gap_s is None and event.start_s >= over_s and event.name.startswith(_FORWARD):
            gap_s = event.start_s if event.thread == window.thread else None
    if not passes[-1]:
        begins, passes = begins[:-1] or begins, passes[:-1] or passes

    def alike(one: Counter[str], other: Counter[str]) -> bool:
        return (one & other).total() >= _ALIKE * max(one.total(), other.total())

    # The shortest period after which passes repeat. Passes that differ by design, a generator's and its critic's, are
    # one micro-batch together; where none repeat the period is all of them, and the step is one.
    count = len(passes)
    period = next(
        p for p in range(1, count + 1)
        if count % p == 0 and all(alike(passes[n], passes[n % p]) for n in range(p, count))
    )  # fmt: skip
    return begins[::period]


def _step(
    name: str, end_s: float, inside: Sequence[HostEvent], waits: Sequence[HostEvent], number: int, count: int
) -> HostStep | None:
    nodes = [event for event in inside if event.name.startswith(NODE)]
    accumulations = [event for event in inside if event.name == ACCUMULATE]
    if not nodes or not accumulations:
        return None
    optimizer = [HostInterval(event.start_s, event.end_s) for event in inside if event.name.startswith(_OPTIMIZER)]
    backward_s, backward_end_s = nodes[0].start_s, max(node.end_s for node in nodes)
    forward_s, prefix = _forward(inside, optimizer, backward_s)
    marks = [event for event in inside if event.name.startswith(_DDP_MARKS) and event.start_s >= backward_s]
    functions: dict[str, list[HostEvent]] = {}
    for event in inside:
        functions.setdefault(event.name, []).append(event)
    tail_s = _usual_tail(nodes, functions)
    # An allreduce of the loop's own, after backward, is none of DDP's marks.
    finished_s = (mark.end_s for mark in marks if mark.name.startswith(_REDUCER_MARKS))
    finish = HostInterval(backward_end_s, max([backward_end_s, *finished_s]))
    intervals = [*prefix, *_hooks(nodes, accumulations, marks, tail_s), finish]
    if not optimizer and number + 1 == count:
        optimizer = [HostInterval(finish.end_s, end_s)]
    reducer = any(event.name == _DDP_FORWARD or event.name.startswith(_REDUCER_MARKS) for event in inside)
    collectives, hooked = _collectives(inside, nodes, accumulations) if reducer else ([], [])
    return HostStep(
        name, forward_s, backward_s, backward_end_s, optimizer, accumulations, intervals, collectives, waits, end_s,
        hooked, reducer, number, count,
    )  # fmt: skip


def _forward(
    inside: Sequence[HostEvent], optimizer: Sequence[HostInterval], backward_s: float
) -> tuple[float, list[HostInterval]]:
    """Return the start of forward, and the broadcast of buffers at its start, where there is one."""
    ddp = next((event for event in inside if event.name == _DDP_FORWARD), None)
    if ddp is None:
        apart = (
            e for e in inside if "#" not in e.name and not any(o.start_s <= e.start_s < o.end_s for o in optimizer)
        )
        return next((event.start_s for event in apart), backward_s), []
    leading: list[HostEvent] = []
    for event in inside:
        if event.start_s > ddp.start_s:
            if event.name not in BROADCAST_OPERATORS:
                break
            leading.append(event)
    if not any("broadcast" in event.name for event in leading):
        return ddp.start_s, []
    return ddp.start_s, [HostInterval(ddp.start_s, max(event.end_s for event in leading))]


def _hooks(
    nodes: Sequence[HostEvent], accumulations: Sequence[HostEvent], marks: Sequence[HostEvent], tail_s: float
) -> list[HostInterval]:
    """Return what follows each accumulation inside its node where DDP is at work, but for autograd's usual tail."""
    if not marks:
        return []
    starts = [mark.start_s for mark in marks]
    outer = {node.start_s: node for node in nodes if node.name.endswith(ACCUMULATE)}
    outer_starts = sorted(outer)
    intervals = []
    for accumulation in accumulations:
        index = bisect_right(outer_starts, accumulation.start_s) - 1
        if index < 0 or (node := outer[outer_starts[index]]).end_s < accumulation.end_s:
            continue
        first = bisect_left(starts, accumulation.end_s)
        if first < len(starts) and starts[first] < node.end_s:
            intervals.append(HostInterval(accumulation.end_s, max(accumulation.end_s, node.end_s - tail_s)))
    return intervals


def _usual_tail(nodes: Sequence[HostEvent], functions: Mapping[str, Sequence[HostEvent]]) -> float:
    """Return the median time from a function's end to its node's end, where no gradient is accumulated."""
    tails = []
    for node in nodes:
        candidates = functions.get(node.name.removeprefix(NODE), ())
        index = bisect_left(candidates, node.start_s, key=lambda event: event.start_s)
        if index < len(candidates) and candidates[index].end_s <= node.end_s and not node.name.endswith(ACCUMULATE):
            tails.append(node.end_s - candidates[index].end_s)
    return statistics.median(tails) if tails else 0.0


def _collectives(
    inside: Sequence[HostEvent], nodes: Sequence[HostEvent], accumulations: Sequence[HostEvent]
) -> tuple[list[BucketAllreduce], list[float]]:
    """Return the allreduces of buckets, and when any was called by a hook.

    Those of buckets are those that the hook of an accumulation launches, of numbers with a fraction. Layers and the
    loop launch others elsewhere; the bitmap of unused parameters, behind the last bucket, is of integers and, where the
    trace does not say so, brings no new gradient.
    """
    hooks = [node for node in nodes if node.name.endswith(ACCUMULATE)]
    starts, arrived = [hook.start_s for hook in hooks], [accumulation.start_s for accumulation in accumulations]
    parameters = [event for event in inside if event.name == "record_param_comms"]
    buckets: list[BucketAllreduce] = []
    hooked = []
    for call in (event for event in inside if event.name == "c10d::allreduce_"):
        hook = bisect_right(starts, call.start_s) - 1
        if hook < 0 or call.start_s >= hooks[hook].end_s:
            continue
        hooked.append(call.start_s)
        args: Mapping[str, object] = next(
            (e.args for e in parameters if call.start_s <= e.start_s <= call.end_s), call.args
        )
        nelems, dtype = args.get("In msg nelems"), dtype_named(args.get("dtype"))
        elements, after = nelems if isinstance(nelems, int) else None, bisect_right(arrived, call.start_s)
        new = elements is not None or not buckets or buckets[-1].after < after
        if new and (dtype is None or "float" in dtype):
            buckets.append(BucketAllreduce(call.start_s, after, elements, dtype))
    return buckets, hooked


_COMMUNICATION = ("nccl", "rccl", "msccl")
"""In names of kernels of NCCL, of RCCL, whose own are called NCCL's, and of the library that RCCL may take instead."""


def is_communication(work: DeviceWork) -> bool:
    """Whether the device's work is a collective."""
    name = work.name.lower()
    return "ccl" in name and any(word in name for word in _COMMUNICATION)
