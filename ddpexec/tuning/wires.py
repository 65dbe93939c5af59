"""What an allreduce takes by its size, alone on the network, from stamps of steps in which several were under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from ddpexec.tuning.observed import RankSteps, Seconds

_CANNOT_TELL = 0.3
"""Share of an allreduce's time that is taken not to grow with its bytes where messages of one size alone were seen.

Any share is as likely there; a probing plan settles it, and this is used where none could be run. By hand."""
APART = 2.0
"""Largest over smallest message from which on bytes and latency are told apart (`ddpsim.explaining.machine.APART`)."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A wire carries an allreduce of so many bytes in `latency_s` and `per_byte_s` for each.

    Attributes:
        seen: size and seconds alone on the network, one of each size, ascending.
        error: how far the line is off the usual of those, a share.
    """

    latency_s: float
    per_byte_s: float
    seen: tuple[tuple[int, float], ...]
    error: float

    @property
    def apart(self) -> bool:
        """Whether sizes were far enough apart to tell bytes from latency."""
        return self.seen[-1][0] >= APART * self.seen[0][0]

    def time_s(self, size_bytes: int) -> float:
        """Return the seconds of an allreduce alone."""
        return self.latency_s + self.per_byte_s * size_bytes


def wire_of(plans: Sequence[Sequence[RankSteps]], small: tuple[int, float] | None = None) -> Wire | None:
    """Return the wire that the steps of all ranks show; None where nothing was sent.

    Args:
        plans: of each plan, every rank's steps.
        small: bytes and seconds of an allreduce of next to nothing, timed by itself. It is the latency then: what is
            left over of large messages, where a line through them meets zero, is not.
    """
    times: dict[int, list[float]] = {}
    for ranks in plans:
        for size, seconds in _alone(ranks):
            times.setdefault(size, []).append(seconds)
    seen = tuple((size, median(each)) for size, each in sorted(times.items()) if median(each) > 0)
    if not seen:
        return None
    return _line(seen) if small is None else _from(small, seen)


def _from(small: tuple[int, float], seen: tuple[tuple[int, float], ...]) -> Wire:
    """Return latency as timed of a small message, and bytes of what is left of those seen."""
    latency_s = min(small[1], *(seconds for _, seconds in seen))
    carried = [(size - small[0], seconds - latency_s) for size, seconds in seen if size > small[0]]
    per_byte_s = sum(seconds for _, seconds in carried) / sum(size for size, _ in carried) if carried else 0.0
    error = float(np.median([abs((latency_s + per_byte_s * size) / seconds - 1) for size, seconds in seen]))
    return Wire(latency_s, per_byte_s, (small, *seen) if small[0] < seen[0][0] else seen, error)


def _line(seen: tuple[tuple[int, float], ...]) -> Wire:
    """Fit latency and bytes by least squares of relative errors, neither below zero."""
    sizes, times = (np.array(column, dtype=np.float64) for column in zip(*seen, strict=True))
    if sizes[-1] < APART * sizes[0]:
        size, seconds = float(np.median(sizes)), float(np.median(times))
        latency_s, per_byte_s = _CANNOT_TELL * seconds, (1 - _CANNOT_TELL) * seconds / size
    else:
        rows = np.stack([1 / times, sizes / times], axis=1)
        latency_s, per_byte_s = map(float, np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0])
        if latency_s < 0:
            latency_s, per_byte_s = 0.0, _through_zero(sizes / times)
        elif per_byte_s <= 0:
            latency_s, per_byte_s = _through_zero(1 / times), 0.0
    error = float(np.median(np.abs((latency_s + per_byte_s * sizes) / times - 1)))
    return Wire(latency_s, per_byte_s, seen, error)


def _through_zero(column: Seconds) -> float:
    return float(column.sum() / (column * column).sum())


def _alone(ranks: Sequence[RankSteps]) -> list[tuple[int, float]]:
    """Return size and seconds of each allreduce, as if the network had been its own.

    It begins when the last rank has come and ends when the ranks' usual one does; clocks are aligned by the ends, which
    all ranks leave together. While k are under way each gets a k-th of the network.
    """
    steps = min(len(rank.sent) for rank in ranks)
    usual = [step for step in range(steps) if len({len(rank.sent[step]) for rank in ranks}) == 1]
    shifts = _shifts(ranks, usual)
    found: list[tuple[int, float]] = []
    for step in usual:
        begins, ends = list[list[float]](), list[list[float]]()
        for rank, shift in zip(ranks, shifts, strict=True):
            begins.append([each.started_s + shift for each in rank.sent[step]])
            ends.append([each.ended_s + shift for each in rank.sent[step]])
        spans = [
            (max(begin), max(max(begin), median(end)))
            for begin, end in zip(zip(*begins, strict=True), zip(*ends, strict=True), strict=True)
        ]
        sizes = [each.size_bytes for each in ranks[0].sent[step]]
        found += zip(sizes, shared(spans), strict=True)
    return found


def _shifts(ranks: Sequence[RankSteps], steps: Sequence[int]) -> list[float]:
    """Return what to add to each rank's clock to get the first rank's."""
    first = ranks[0]
    shifts = []
    for rank in ranks:
        apart = [
            ours.ended_s - theirs.ended_s
            for step in steps
            for ours, theirs in zip(first.sent[step], rank.sent[step], strict=True)
        ]
        shifts.append(median(apart) if apart else 0.0)
    return shifts


def shared(spans: Sequence[tuple[float, float]]) -> list[float]:
    """Return how long each span would be, were what is under way at once not to share.

    >>> shared([(0.0, 4.0), (2.0, 6.0)])
    [3.0, 3.0]
    """
    edges = sorted({edge for span in spans for edge in span})
    alone = [0.0] * len(spans)
    for low, high in pairwise(edges):
        here = [number for number, (begin, end) in enumerate(spans) if begin <= low and end >= high]
        for number in here:
            alone[number] += (high - low) / len(here)
    return alone
