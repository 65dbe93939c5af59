"""Copies into buckets and out, as a backward and its end make them, alone and beside collectives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddpexec.ddp.flat import FlatBucket
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.stopwatch import (
    Span,
    agree_on_median,
    allreduces_span,
    measure_last_to_last,
    seconds_of,
    time_on_device,
)

BUCKETS, BUCKET_PARAMETERS = 4, 12
"""Buckets that are copied into by turns, and gradients in each; chosen by hand."""
BUCKET_BYTES = 25 << 20
"""torch's default bucket; four of them and their gradients are more than caches hold."""

SMALL_BYTES = 64 << 10
"""A message whose time is that of its steps, its bytes next to nothing."""
LARGE_BYTES = 8 << 20
"""A message whose time is that of its bytes."""
_LARGE, _SMALL = 5, 12
"""Repetitions of the large and of the small collective, whose median counts; chosen by hand."""


def make_small_bucket(numel: int, device: torch.device) -> tuple[FlatBucket, list[nn.Parameter]]:
    """Return a bucket of gradients of `numel` elements, and its parameters."""
    parameters = [nn.Parameter(torch.ones(numel, device=device)) for _ in range(BUCKET_PARAMETERS)]
    indices = tuple(range(BUCKET_PARAMETERS))
    made = FlatBucket(0, indices, parameters, as_view=False, batched=False)
    made.divisor = 2
    return made, parameters


class Copies:
    """Default buckets with gradients that lie apart from them.

    Attributes:
        size_bytes: copied by one round trip: every gradient in and out.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        numel = BUCKET_BYTES // 4 // BUCKET_PARAMETERS
        self._buckets = [make_small_bucket(numel, device) for _ in range(BUCKETS)]
        self.size_bytes = 2 * sum(bucket.size_bytes for bucket, _ in self._buckets)
        self._next = 0
        for _, parameters in self._buckets:
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)

    def round_trip(self) -> None:
        """Copy every bucket in, then every bucket out."""
        for bucket, _ in self._buckets:
            for place in range(BUCKET_PARAMETERS):
                bucket.fill(place)
            bucket.complete()
        for bucket, _ in self._buckets:
            bucket.write_back(())

    def speed(self, communicator: Communicator) -> float:
        """Return bytes copied a second where all ranks copy at once, more gradients than caches hold."""
        self.round_trip()
        taken = self._make_timer()
        times = []
        for _ in range(6):
            communicator.barrier()
            times.append(taken())
        return self.size_bytes / statistics.median(times)

    def _make_timer(self) -> Callable[[], float]:
        if self._device.type == "cuda":
            return time_on_device(self.round_trip, self._device)
        return lambda: seconds_of(self.round_trip, self._device)

    def slowdowns(self, communicator: Communicator) -> dict[str, float]:
        """Return by which factors copies and collectives slow each other, one or more each; every rank copies.

        `copy_slowdown` of copies beside a large collective, `communication_slowdown` of that collective, and
        `step_slowdown` of a small one, whose time is that of threads woken from step to step.
        """
        large = [self.measure_beside(communicator, torch.ones(LARGE_BYTES // 4)) for _ in range(_LARGE)]
        small = [self.measure_beside(communicator, torch.ones(SMALL_BYTES // 4)) for _ in range(_SMALL)]
        copies = agree_on_median(statistics.median(each.copy_ratio for each in large), communicator)
        return {
            "copy_slowdown": max(1.0, copies),
            "communication_slowdown": max(1.0, _slowdown(large, communicator)),
            "step_slowdown": max(1.0, _slowdown(small, communicator)),
        }

    def measure_beside(self, communicator: Communicator, tensor: Tensor) -> BesideCopies:
        """Time a collective on `tensor` without copies and beside them; every rank calls it."""
        communicator.barrier()
        quiet = allreduces_span(communicator, tensor)
        communicator.barrier()
        start, copies = time.perf_counter(), []
        work = communicator.all_reduce(tensor, 0)
        while not work.is_completed():
            copies.append(self._copy_one())
        busy = start, time.perf_counter()
        communicator.barrier()
        alone = [self._copy_one() for _ in range(max(len(copies), BUCKET_PARAMETERS))]
        # The collective may have ended during the last copy.
        beside = copies[:-1] or copies or alone
        return BesideCopies(quiet, busy, statistics.fmean(beside) / statistics.fmean(alone))

    def _copy_one(self) -> float:
        """Copy the next gradient in; return the seconds."""
        self._next = (self._next + 1) % (BUCKETS * BUCKET_PARAMETERS)
        number, place = divmod(self._next, BUCKET_PARAMETERS)
        start = time.perf_counter()
        self._buckets[number][0].fill(place)
        return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class BesideCopies:
    """Holds a collective without and with copies beside it, on this rank, and a copy's time then over that alone."""

    quiet: Span
    busy: Span
    copy_ratio: float


def _slowdown(measured: list[BesideCopies], communicator: Communicator) -> float:
    """Return the collectives' median with copies beside them over that without."""
    busy = measure_last_to_last([each.busy for each in measured], communicator)
    quiet = measure_last_to_last([each.quiet for each in measured], communicator)
    return statistics.median(busy) / statistics.median(quiet)
