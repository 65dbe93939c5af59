"""Times of short pieces of work on any device, combined over ranks; and the other work on their machines meanwhile."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, wait
from ddpexec.timing.clock import offset_to_rank_zero, settle
from ddpexec.timing.waiting import spinner, time_between_events
from ddpsim.common.other_work import OtherWork, ProcessorClock, ProcessorUse, find_other_work


def gather_other_work(clock: ProcessorClock, communicator: Communicator) -> OtherWork | None:
    """Return on every rank the other work since `clock` began, on the busiest machine; None where it is unknown."""
    uses: list[ProcessorUse | None] = [None] * communicator.world_size
    dist.all_gather_object(uses, clock.since(), group=communicator.main)
    return find_other_work(uses)


CHILL_BYTES = 48 << 20
"""More than the part of a last-level cache that a core gets."""
_HEAD_START_S = 1e-3
"""What the GPU spins beyond twice the time that queueing took; chosen by hand."""
Span = tuple[float, float]
"""Start and end of a piece of work, in seconds of this host's clock."""


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `work` until the device has finished it."""
    start, end = span_of(work, device)
    return end - start


def span_of(work: Callable[[], object], device: torch.device) -> Span:
    """Return when `work` began and when the device had finished it, on this host's clock."""
    settle(device)
    start = time.perf_counter()
    if device.type == "cuda":
        return start, start + time_between_events(work, device)
    work()
    return start, time.perf_counter()


def allreduces_span(communicator: Communicator, *tensors: torch.Tensor) -> Span:
    """Return when allreduces of `tensors`, launched at once, began and when all had ended, on this host's clock."""

    def all_at_once() -> None:
        for work in [communicator.all_reduce(tensor, 0) for tensor in tensors]:
            wait(work, communicator, "an allreduce")

    return span_of(all_at_once, tensors[0].device)


def time_on_device(work: Callable[[], object], device: torch.device) -> Callable[[], float]:
    """Return a function that times `work`, which never waits, on a GPU, however slowly the host queues it.

    The GPU spins until all of it is queued; how long that takes is measured here.
    """
    spin = spinner(device)
    settle(device)
    begin = time.perf_counter()
    work()
    queued_s = time.perf_counter() - begin

    def seconds() -> float:
        spin(2 * queued_s + _HEAD_START_S)
        return time_between_events(work, device)

    return seconds


def measure_last_to_last(spans: Sequence[Span], communicator: Communicator) -> list[float]:
    """Return the seconds of each of these collectives, from its last rank's start to its last rank's end.

    A rank that starts early waits for the others, and one before a slow link is rid of its bytes before they arrive:
    no rank's own duration is the collective's.
    """
    offset_s = offset_to_rank_zero(communicator)
    starts, ends = (gather([span[side] + offset_s for span in spans], communicator) for side in (0, 1))
    moments = zip(zip(*starts, strict=True), zip(*ends, strict=True), strict=True)
    return [max(ended) - max(started) for started, ended in moments]


Prepare = Callable[[], Callable[[], object]]
"""What comes before a piece of work, and is not timed; returns the work."""


def median_difference(longer: Prepare, shorter: Prepare, device: torch.device, repeats: int) -> float:
    """Return the median of `longer` minus that of `shorter`, run in turn so that drift meets both; at least zero."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(repeats + 2):
        for prepare, taken in zip((longer, shorter), times, strict=True):
            seconds = seconds_of(prepare(), device)
            if number >= 2:
                taken.append(seconds)
    return max(0.0, statistics.median(times[0]) - statistics.median(times[1]))


def chill(device: torch.device) -> None:
    """Replace what a processor's caches hold, as computing a layer does; nothing for a GPU, which does that itself."""
    if device.type == "cpu":
        _make_other_memory().add_(1.0)


@functools.cache
def _make_other_memory() -> torch.Tensor:
    return torch.ones(CHILL_BYTES // 4)


def gather(values: Sequence[float], communicator: Communicator) -> list[list[float]]:
    """Return every rank's `values`, which are equally many on each."""
    device = communicator.device_for(torch.device("cuda" if communicator.backend == "nccl" else "cpu"))
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    with name_lost_ranks(communicator, "the exchange of measured times"):
        return [each.tolist() for each in communicator.gather(mine)]


def agree_on_median(value: float, communicator: Communicator) -> float:
    """Return the median of the ranks' `value`, the same on every rank."""
    return statistics.median(rank[0] for rank in gather([value], communicator))
