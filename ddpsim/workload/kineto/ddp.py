"""What somebody's existing DDP job did, from one rank's Kineto trace alone: buckets, skew against wire time.

A collective's kernel runs from this rank's arrival to the end, so its duration holds the waiting for other ranks. One
rank cannot see when the last one arrived; the wire is taken to be as fast, in bytes a second, as the fastest
collective in the trace, and what a collective took beyond that is skew. Both are bounds: the true wire time is at most
what is given here where one of the collectives met no skew.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ddpsim.bucketing import Parameter
from ddpsim.errors import TraceError
from ddpsim.trace.records import BucketTimes, Gradient, Iteration, Trace
from ddpsim.workload.kineto.events import DeviceWork
from ddpsim.workload.kineto.steps import HostStep, is_communication
from ddpsim.workload.kineto.workload import DissectedTrace, open_trace
from ddpsim.workload.profile import Workload


def read_ddp(path: str | Path, shapes: Workload | None = None) -> Trace:
    """Return the run that a Kineto trace of one rank under DDP on GPUs holds.

    Args:
        path: the trace.
        shapes: a workload of the same model, needed where the trace was recorded without shapes.

    Raises:
        TraceError: an unreadable trace, or one without allreduces on a device.
        WorkloadError: `shapes` is of another model.
    """
    return ddp_run(open_trace(path, shapes))


def ddp_run(traced: DissectedTrace) -> Trace:
    """Return the run that a trace taken apart holds; see `read_ddp`."""
    collectives = [_kernels(step, traced.file.events.works) for step in traced.steps]
    if not any(collectives):
        remedy = "import it as a workload, or trace a rank under DDP on a GPU"
        raise TraceError("no allreduce of DDP runs on a device in it", place=traced.file.place, remedy=remedy)
    rank = traced.file.rank or 0
    ends = [later.forward_s for _, later in pairwise(traced.steps)] + [traced.steps[-1].end_s]
    reader = _StepReader(traced, rank, _wire_rate(traced, collectives))
    iterations = [
        reader.iteration(index, step, end_s, kernels)
        for index, (step, end_s, kernels) in enumerate(zip(traced.steps, ends, collectives, strict=True))
    ]
    provenance = {
        "how": "a Kineto trace of one rank; wire times by the fastest collective",
        "file": Path(traced.file.place).name,
    }
    world_size = traced.file.world_size or 1
    return Trace(world_size, traced.file.backend or "nccl", iterations, provenance=provenance)


def list_buckets(trace: Trace) -> list[dict[str, float]]:
    """Return the buckets of a trace as JSON objects: medians over its iterations, in seconds from the start of forward.

    `skew_s` and `wire_s` split the collective.
    """
    synced = [iteration for iteration in trace.iterations if iteration.buckets]
    numbers = range(min((len(iteration.buckets) for iteration in synced), default=0))
    return [
        _describe_bucket([(iteration.start_s, iteration.buckets[number]) for iteration in synced]) for number in numbers
    ]


def buckets_in(traced: DissectedTrace) -> list[dict[str, float]]:
    """Return the buckets of a trace taken apart; none where no allreduce of DDP runs on a device in it."""
    launched = any(_kernels(step, traced.file.events.works) for step in traced.steps)
    return list_buckets(ddp_run(traced)) if launched else []


def _describe_bucket(found: Sequence[tuple[float, BucketTimes]]) -> dict[str, float]:
    first = found[0][1]
    wires = [(bucket.wire_s or bucket.started_s, bucket) for _, bucket in found]
    moments = ("ready_s", "launched_s", "started_s", "finished_s")
    times = {name: [getattr(bucket, name) - start_s for start_s, bucket in found] for name in moments}
    times["skew_s"] = [wire_s - bucket.started_s for wire_s, bucket in wires]
    times["wire_s"] = [bucket.finished_s - wire_s for wire_s, bucket in wires]
    what = {"index": first.index, "parameters": len(first.parameters), "size_bytes": first.size_bytes}
    return what | {name: round(float(statistics.median(each)), _NANOSECONDS) for name, each in times.items()}


_NANOSECONDS = 9
"""Decimals of a second that are told."""


def _kernels(step: HostStep, works: Sequence[DeviceWork]) -> list[DeviceWork]:
    """Return the device's work of each of the step's allreduces, in launch order; none where one is missing."""
    starts = [collective.launched_s for collective in step.collectives]
    ends = [*starts[1:], step.end_s][: len(starts)]
    found = []
    for collective, end_s in zip(step.collectives, ends, strict=True):
        kernel = next(
            (
                work
                for work in works
                if is_communication(work)
                and work.launch is not None
                and collective.launched_s <= work.launch.start_s < end_s
            ),
            None,
        )
        if kernel is None:
            return []
        found.append(kernel)
    return found


def _members(step: HostStep, traced: DissectedTrace) -> list[tuple[int, ...]]:
    """Return the registration indices of each allreduce's gradients, in arrival order."""
    edges = [0, *(collective.after for collective in step.collectives)]
    return [traced.mapping.order[begin:end] for begin, end in pairwise(edges)]


def _size(members: Sequence[int], parameters: Sequence[Parameter]) -> int:
    return sum(parameters[index].size_bytes for index in members)


def _wire_rate(traced: DissectedTrace, collectives: Sequence[Sequence[DeviceWork]]) -> float:
    """Return the bytes a second of the fastest collective."""
    return max(
        _size(members, traced.mapping.parameters) / (kernel.end_s - kernel.start_s)
        for step, kernels in zip(traced.steps, collectives, strict=True)
        for members, kernel in zip(_members(step, traced), kernels, strict=False)
        if kernel.end_s > kernel.start_s
    )


@dataclass(frozen=True, slots=True)
class _StepReader:
    """Reads the steps of a trace.

    Attributes:
        rate: bytes a second of its fastest collective, by which bytes are taken to have moved in all.
    """

    traced: DissectedTrace
    rank: int
    rate: float

    def iteration(self, index: int, step: HostStep, end_s: float, kernels: Sequence[DeviceWork]) -> Iteration:
        """Return the record of a step, of which `kernels` are the device's allreduces."""
        traced = self.traced
        works = [w for w in traced.file.events.works if w.launch and step.forward_s <= w.launch.start_s < step.end_s]
        computing = [work for work in works if not is_communication(work)]
        buckets = tuple(
            self._bucket(number, step, members, kernel, computing)
            for number, (members, kernel) in enumerate(zip(_members(step, traced), kernels, strict=False))
        )
        broadcast_s = sum(i.end_s - i.start_s for i in step.ddp if i.start_s < step.backward_s)
        hooks_s = sum(i.end_s - i.start_s for i in step.ddp if step.backward_s <= i.start_s < step.backward_end_s)
        computed_s = _find_done(
            [work for work in computing if _launch(work) < step.backward_end_s], step.backward_end_s
        )
        communicated_s = max((bucket.finished_s for bucket in buckets), default=0.0)
        return Iteration(
            rank=self.rank,
            index=index,
            start_s=step.forward_s,
            end_s=end_s,
            forward_s=step.backward_s - step.forward_s - broadcast_s,
            backward_compute_s=step.backward_end_s - step.backward_s - hooks_s,
            exposed_comm_s=max(0.0, communicated_s - max(computed_s, step.backward_end_s)),
            buffer_broadcast_s=broadcast_s,
            optimizer_s=sum(i.end_s - i.start_s for i in step.optimizer),
            synced=bool(buckets),
            stepped=bool(buckets) and step.number + 1 == step.count,
            buckets=buckets,
            gradients=tuple(
                Gradient(parameter=parameter, hook_s=event.end_s, ready_s=_find_completed(computing, event.end_s))
                for parameter, event in zip(traced.mapping.order, step.accumulations, strict=True)
            ),
        )

    def _bucket(
        self,
        number: int,
        step: HostStep,
        members: tuple[int, ...],
        kernel: DeviceWork,
        computing: Sequence[DeviceWork],
    ) -> BucketTimes:
        launched_s = step.collectives[number].launched_s
        size_bytes = _size(members, self.traced.mapping.parameters)
        behind = [w.end_s for w in computing if _launch(w) > step.backward_end_s and w.start_s >= kernel.end_s]
        copies = sorted(behind)[: len(members)]
        return BucketTimes(
            index=number,
            size_bytes=size_bytes,
            parameters=members,
            ready_s=_find_completed(computing, launched_s),
            launched_s=launched_s,
            started_s=kernel.start_s,
            wire_s=max(kernel.start_s, kernel.end_s - size_bytes / self.rate),
            finished_s=kernel.end_s,
            written_s=copies[-1] if copies and number + 1 == len(step.collectives) else kernel.end_s,
        )


def _find_completed(works: Sequence[DeviceWork], launched_before_s: float) -> float:
    """Return when the device was done with all that the host had launched by a moment."""
    return _find_done([work for work in works if _launch(work) <= launched_before_s], launched_before_s)


def _find_done(works: Sequence[DeviceWork], otherwise_s: float) -> float:
    return max((work.end_s for work in works), default=otherwise_s)


def _launch(work: DeviceWork) -> float:
    assert work.launch is not None
    return work.launch.start_s
