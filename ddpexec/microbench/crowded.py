"""Small allreduces beside others: what one takes at least, however few its bytes."""

from __future__ import annotations

import statistics

import torch

from ddpexec.groups.process_groups import Communicator, wait
from ddpexec.timing.stopwatch import Span, allreduces_span, measure_last_to_last

SMALL_BYTES = 16 << 10
"""A message whose bytes take next to nothing."""
LARGE_BYTES = 16 << 20
"""A message that is still on its way when `FEW` small ones beside it have ended."""
IN_FLIGHT = 2
"""Collectives that a process group of gloo keeps in flight (`ProcessGroupGloo.cpp`, two threads)."""
MANY, FEW, REPEATS = 32, 3, 7
"""Small messages launched at once, and one after the other beside a large one; repetitions. Chosen by hand."""


def measure_crowded(communicator: Communicator, device: torch.device) -> dict[str, float]:
    """Return `pair_s` of a small allreduce beside its like, and `behind_s` of one beside a large one: medians."""
    small = [torch.zeros(SMALL_BYTES // 4, device=device) for _ in range(MANY)]
    large = torch.zeros(LARGE_BYTES // 4, device=device)

    together, behind = [], []
    for _ in range(REPEATS):
        communicator.barrier()
        together.append(allreduces_span(communicator, *small))
        communicator.barrier()
        behind += _measure_beside(communicator, large, small[0])
    pair_s = statistics.median(measure_last_to_last(together, communicator)) * IN_FLIGHT / MANY
    return {"pair_s": pair_s, "behind_s": statistics.median(measure_last_to_last(behind, communicator))}


def _measure_beside(communicator: Communicator, large: torch.Tensor, small: torch.Tensor) -> list[Span]:
    """Return the spans of small allreduces, each waited for, while a large one is in flight."""
    work = communicator.all_reduce(large, 0)
    # The first comes before the large one's bytes lie in the links' queues.
    spans = [allreduces_span(communicator, small) for _ in range(1 + FEW)][1:]
    wait(work, communicator, "a large allreduce")
    return spans
