"""Allreduces launched at once, as DDP launches buckets faster than a network carries them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import wait
from ddpexec.timing.stopwatch import Span, measure_last_to_last, span_of

_WARM_UP, _REPEATS = 1, 5
"""Repetitions that are discarded, and those whose median counts; chosen by hand."""


@dataclass(frozen=True, slots=True)
class ConcurrentAllreduces:
    """Allreduces of `sizes_bytes` float32 bytes, launched in this order: median seconds until the last has ended."""

    sizes_bytes: tuple[int, ...]
    time_s: float


def measure_together(launched: Launched, sizes_bytes: Sequence[int]) -> ConcurrentAllreduces:
    """Measure them on the main process group, which queues those that it does not keep in flight."""
    tensors = [torch.zeros(size // 4, device=launched.device) for size in sizes_bytes]
    spans = [_run_once(launched, tensors) for _ in range(_WARM_UP + _REPEATS)]
    return ConcurrentAllreduces(
        tuple(sizes_bytes), statistics.median(measure_last_to_last(spans[_WARM_UP:], launched.communicator))
    )


def _run_once(launched: Launched, tensors: Sequence[torch.Tensor]) -> Span:
    def all_at_once() -> None:
        works = [launched.communicator.all_reduce(tensor, 0) for tensor in tensors]
        for work in works:
            wait(work, launched.communicator, "one of several allreduces")

    launched.communicator.barrier()
    return span_of(all_at_once, launched.device)
