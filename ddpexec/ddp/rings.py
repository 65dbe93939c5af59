"""Reduce-scatter and all-gather as rings of sends and receives, for a backend that has no good ones of its own.

Torch's gloo carries a reduce-scatter out as an allreduce of a copy, and sends and receives of two ranks share one
connection of a process group. These rings move (p-1)/p of a message and sum in the order of gloo's allreduce: around
the ring from each rank to the one before, the part of rank r beginning at rank r - 1 and ending at rank r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from ddpexec.groups.process_groups import timeout_of
from ddpexec.groups.waiting import wait_within

SEGMENT_BYTES = 1 << 20
"""Most bytes of one send, so that a rank passes on the beginning of a part while its end still comes; gloo's too."""
PER_RANK = 2
"""Segments of a rank's part, at least; gloo's too."""


def part_elements(elements: int, item_bytes: int, ranks: int) -> int:
    """Return the elements of each rank's part of a message, the last parts padded: as gloo's allreduce divides it.

    Source: gloo `allreduce.cc`, `ring`: segments of at most 1 MiB, twice as many as ranks at least, a multiple of the
    ranks, all of one size in whole elements.
    """
    if elements == 0:
        return 0
    segments = max(math.ceil(elements * item_bytes / SEGMENT_BYTES), PER_RANK * ranks)
    per_rank = math.ceil(segments / ranks)
    return per_rank * math.ceil(elements / (per_rank * ranks))


class RingNeighbours:
    """A ring sends to the rank before and receives from the rank after, by tags that no two messages share.

    Args:
        groups: process groups of the same ranks; two of two ranks, whose messages to each other then go at once, else
            one.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._groups = groups
        self.rank, self.ranks, self._timeout = groups[0].rank(), groups[0].size(), timeout_of(groups[0])
        self._tag = 0

    def reduce_scatter(self, whole: Tensor) -> None:
        """Sum `whole`, one part a rank, over the ranks; this rank's part of it then holds its sum, the others nothing
        to be relied on."""
        parts = whole.view(self.ranks, -1)
        steps = self.ranks - 1
        # In step s the part of rank r + s + 2 comes, to be summed and passed on, the last one being this rank's own.
        coming = [parts[(self.rank + 2 + step) % self.ranks] for step in range(steps)]
        came = [part.new_empty(part.shape) for part in coming]
        self._send_around(parts[(self.rank + 1) % self.ranks], coming, came)

    def all_gather(self, whole: Tensor) -> None:
        """Send this rank's part of `whole` to all, and put theirs in their places."""
        parts = whole.view(self.ranks, -1)
        coming = [parts[(self.rank + 1 + step) % self.ranks] for step in range(self.ranks - 1)]
        self._send_around(parts[self.rank], coming, None)

    def _send_around(self, first: Tensor, coming: list[Tensor], came: list[Tensor] | None) -> None:
        """Send `first`, then what comes in each step but the last, added to `coming` where it came elsewhere."""
        segments = list(_cut(first.numel(), first.element_size()))
        tags = {(step, k): self._next_tag() for step in range(len(coming)) for k in range(len(segments))}
        into = coming if came is None else came
        receives = {
            (step, k): self._receive(into[step][begin:end], tags[step, k])
            for step in range(len(coming))
            for k, (begin, end) in enumerate(segments)
        }
        sends = [self._send(first[begin:end], tags[0, k]) for k, (begin, end) in enumerate(segments)]
        for step, part in enumerate(coming):
            for k, (begin, end) in enumerate(segments):
                wait_within(receives[step, k], self._timeout)
                if came is not None:
                    part[begin:end].add_(came[step][begin:end])
                if step + 1 < len(coming):
                    sends.append(self._send(part[begin:end], tags[step + 1, k]))
        for send in sends:
            wait_within(send, self._timeout)

    def _send(self, tensor: Tensor, tag: int) -> dist.Work:
        group = self._groups[0 if self.ranks > 2 else self.rank]
        return group.send([tensor], (self.rank - 1) % self.ranks, tag)

    def _receive(self, tensor: Tensor, tag: int) -> dist.Work:
        source = (self.rank + 1) % self.ranks
        group = self._groups[0 if self.ranks > 2 else source]
        return group.recv([tensor], source, tag)

    def _next_tag(self) -> int:
        self._tag = (self._tag + 1) % (1 << 30)
        return self._tag


def _cut(elements: int, item_bytes: int) -> list[tuple[int, int]]:
    count = max(PER_RANK, math.ceil(elements * item_bytes / SEGMENT_BYTES)) if elements else 0
    step = math.ceil(elements / count) if count else 1
    return [(begin, min(begin + step, elements)) for begin in range(0, elements, step)]
