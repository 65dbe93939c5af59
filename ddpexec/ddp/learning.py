"""What a scheme is told of a job, learned in its first iterations: when gradients come, when forward needs what.

Rank 0's times count, and all ranks take them, so that all plan the same order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ddpexec.ddp.lanes import CommunicationStream
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.groups.process_groups import timeout_of
from ddpexec.groups.waiting import wait_within
from ddpexec.timing.stopwatch import seconds_of
from ddpsim.operations import Operation

PROBES = (1 << 20, 8 << 20)
"""Bytes of the allreduces that tell what a message takes, the fixed part and the rate; chosen by hand: buffers on the
way take up hundreds of KiB at once, which smaller ones would take for the wire's rate."""
REPEATS = 5
"""Allreduces of each size; the shortest counts, as what disturbs one only adds to it."""


class ProbeTimes:
    """Learning takes the times of a few iterations.

    Args:
        count: of the model's parameters.
        iterations: that are watched; the first of them is not counted where there are more.
    """

    def __init__(self, count: int, iterations: int) -> None:
        self.iterations, self._count = iterations, count
        self._uses: list[dict[int, float]] = []
        self._ready: list[dict[int, float]] = []
        self._begin_s = self._returned_s = 0.0

    @property
    def done(self) -> bool:
        """Whether enough has been seen."""
        return len(self._ready) >= self.iterations

    def begin(self) -> None:
        """Forward begins."""
        self._begin_s = time.perf_counter()
        self._uses.append({})
        self._ready.append({})

    def forward(self, indices: Sequence[int]) -> None:
        """Forward needs parameters."""
        used_s = time.perf_counter() - self._begin_s
        for index in indices:
            self._uses[-1].setdefault(index, used_s)

    def end_forward(self) -> None:
        """Forward is over."""
        self._returned_s = time.perf_counter()

    def gradient(self, index: int) -> None:
        """A gradient comes."""
        self._ready[-1][index] = time.perf_counter() - self._returned_s

    def list_learned(self) -> list[float]:
        """Return when each parameter is needed, then when its gradient is ready; NaN where never."""
        return [*self._medians(self._uses), *self._medians(self._ready)]

    def _medians(self, seen: Sequence[dict[int, float]]) -> list[float]:
        kept = seen[1:] or seen
        found = ([each[index] for each in kept if index in each] for index in range(self._count))
        return [median(times) if times else math.nan for times in found]


@dataclass(frozen=True, slots=True)
class ProbedLink:
    """What probes say of the wire: an operation takes `fixed_s`, and what it sends at the rate of an allreduce.

    Attributes:
        ranks: of the job.
        fixed_s: seconds of an allreduce of nothing.
        rate: bytes a second beyond, of allreduces.
    """

    ranks: int
    fixed_s: float
    rate: float

    def __call__(self, operation: Operation, size_bytes: int) -> float:
        """Return the seconds of an operation."""
        share = operation.sent(self.ranks) / Operation.ALLREDUCE.sent(self.ranks) if self.ranks > 1 else 1.0
        return self.fixed_s + size_bytes / self.rate * share


def probe(lane: CommunicationStream, model: ModelParameters) -> tuple[float, float]:
    """Return what is measured of the wire: seconds of an allreduce of nothing, and bytes a second beyond."""
    device = model.tensors[0].device
    taken = []
    for size in PROBES:
        tensor = torch.zeros(size // 4, device=device)

        def once(tensor: torch.Tensor = tensor) -> None:
            wait_within(lane.launch(Operation.ALLREDUCE, tensor, ()), timeout_of(lane.group))

        taken.append(min(seconds_of(once, device) for _ in range(REPEATS)))
    rate = (PROBES[1] - PROBES[0]) / max(taken[1] - taken[0], 1e-9)
    return max(0.0, taken[0] - PROBES[0] / rate), rate
