"""What an allreduce takes by its size, alone on the network, from stamps of steps in which several were under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from ddpexec.tuning.observation import RankSteps, Seconds

_CANNOT_TELL = 0.3
"""Share of an allreduce's time that is taken not to grow with its bytes where messages of one size alone were seen.

Any share is as likely there; a probing plan settles it, and this is used where none could be run. By hand."""
APART = 2.0
"""Largest over smallest message from which on bytes and latency are told apart (`ddpsim.explaining.machine.APART`)."""
_TOGETHER = 2.0
"""Most that allreduces under way at once carry over one by itself: as many as gloo has under way."""


@dataclass(frozen=True, slots=True)
class Wire:
    """How long an allreduce takes: `latency_s`, and `per_byte_s` for each byte.

    Attributes:
        seen: size and seconds alone on the network, one of each size, ascending.
        error: how far the line is off the usual of those, a share.
        together: bytes that the network carries while several are under way, over those of one by itself: one waits
            for its sums and its partners while the network idles.
    """

    latency_s: float
    per_byte_s: float
    seen: tuple[tuple[int, float], ...]
    error: float
    together: float = 1.0

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
    spans = [step for ranks in plans for step in _spans(ranks)]
    lengths = [end - begin for step in spans for _, begin, end in step if end > begin]
    if not lengths:
        return None
    latency_s = 0.0 if small is None else min(small[1], *lengths)
    # Bytes move once the latency is over, so each message's time counts from there, and time in which several move is
    # shared among them.
    carried = [each for step in spans for each in _list_carried(step, latency_s)]
    times: dict[int, list[float]] = {}
    for each in carried:
        times.setdefault(each.size_bytes, []).append(latency_s + each.alone_s + each.beside_s)
    seen = tuple((size, median(each)) for size, each in sorted(times.items()) if median(each) > 0)
    if not seen:
        return None
    return _line(seen) if small is None else _from((small[0], latency_s), seen, carried)


@dataclass(frozen=True, slots=True)
class _Carried:
    """How an allreduce was carried: its seconds alone on the network, and its share of the seconds with others."""

    size_bytes: int
    alone_s: float
    beside_s: float


def _from(small: tuple[int, float], seen: tuple[tuple[int, float], ...], carried: Sequence[_Carried]) -> Wire:
    """Return latency as timed of a small message, and what of the others is left for their bytes."""
    moved = [each for each in carried if each.size_bytes > small[0] and each.alone_s + each.beside_s > 0]
    per_byte_s, together = _rates(moved) if moved else (0.0, 1.0)
    off = [per_byte_s * each.size_bytes / (each.alone_s + each.beside_s * together) - 1 for each in moved]
    rows = (small, *seen) if small[0] < seen[0][0] else seen
    return Wire(small[1], per_byte_s, rows, float(np.median(np.abs(off))) if off else 0.0, together)


def _rates(carried: Sequence[_Carried]) -> tuple[float, float]:
    """Return seconds for a byte of an allreduce by itself, and what several carry over that.

    Bytes are the seconds alone times one rate and the seconds beside others times another, by least squares of relative
    errors; one rate where the second would be below the first.
    """
    sizes, alone, during = (
        np.array([getattr(each, name) for each in carried], dtype=np.float64)
        for name in ("size_bytes", "alone_s", "beside_s")
    )
    rows = np.stack([alone / sizes, during / sizes], axis=1)
    # Two unknowns need messages that were alone for different shares of their time; else both rates are taken as one.
    if np.linalg.matrix_rank(rows) == 2:
        rate, both = map(float, np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)[0])
        if 0 < rate <= both <= _TOGETHER * rate:
            return 1 / rate, both / rate
    return float((alone + during).sum() / sizes.sum()), 1.0


def _line(seen: tuple[tuple[int, float], ...]) -> Wire:
    """Fit latency and bytes by least squares of relative errors, neither below zero."""
    sizes, times = (np.array(column, dtype=np.float64) for column in zip(*seen, strict=True))
    # Sizes too near each other: a line through them would give any latency. A fixed share of the time is taken for it.
    if sizes[-1] < APART * sizes[0]:
        size, seconds = float(np.median(sizes)), float(np.median(times))
        latency_s, per_byte_s = _CANNOT_TELL * seconds, (1 - _CANNOT_TELL) * seconds / size
    else:
        rows = np.stack([1 / times, sizes / times], axis=1)
        latency_s, per_byte_s = map(float, np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0])
        if latency_s < 0:
            latency_s, per_byte_s = 0.0, _fit_through_zero(sizes / times)
        elif per_byte_s <= 0:
            latency_s, per_byte_s = _fit_through_zero(1 / times), 0.0
    error = float(np.median(np.abs((latency_s + per_byte_s * sizes) / times - 1)))
    return Wire(latency_s, per_byte_s, seen, error)


def _fit_through_zero(column: Seconds) -> float:
    return float(column.sum() / (column * column).sum())


def _spans(ranks: Sequence[RankSteps]) -> list[list[tuple[int, float, float]]]:
    """Return size, begin and end of the allreduces of each step, on the first rank's clock.

    One begins when the last rank has come and ends when the ranks' usual one does; clocks are aligned by the ends,
    which all ranks leave together.
    """
    steps = min(len(rank.sent) for rank in ranks)
    # Steps in which ranks noted different numbers of messages, as one whose stamping began in the middle, are left out.
    usual = [step for step in range(steps) if len({len(rank.sent[step]) for rank in ranks}) == 1]
    moved = list(zip(ranks, _shifts(ranks, usual), strict=True))
    spans = []
    for step in usual:
        begins = [[each.started_s + shift for each in rank.sent[step]] for rank, shift in moved]
        ends = [[each.ended_s + shift for each in rank.sent[step]] for rank, shift in moved]
        spans.append(
            [
                (sent.size_bytes, max(begin), max(max(begin), median(end)))
                for sent, begin, end in zip(
                    ranks[0].sent[step], zip(*begins, strict=True), zip(*ends, strict=True), strict=True
                )
            ]
        )
    return spans


def _list_carried(step: Sequence[tuple[int, float, float]], latency_s: float) -> list[_Carried]:
    """Return how the bytes of each allreduce of a step were carried, which move once its latency is over."""
    shares = measure_shared([(min(begin + latency_s, end), end) for _, begin, end in step])
    return [_Carried(size, *share) for (size, *_), share in zip(step, shares, strict=True)]


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


def measure_shared(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return how long each span runs alone, and its share of the time in which others run too.

    >>> measure_shared([(0.0, 4.0), (2.0, 6.0)])
    [(2.0, 1.0), (2.0, 1.0)]
    """
    edges = sorted({edge for span in spans for edge in span})
    totals = [[0.0, 0.0] for _ in spans]
    # Between two neighbouring edges the set of running spans is constant; each gets an equal share of such a stretch.
    for low, high in pairwise(edges):
        here = [number for number, (begin, end) in enumerate(spans) if begin <= low and end >= high]
        for number in here:
            totals[number][len(here) > 1] += (high - low) / len(here)
    return [(alone, shared) for alone, shared in totals]
