"""Clocks of ranks, aligned by collectives: all ranks leave one together, whatever each rank's clock shows then.

An allreduce ends on every rank within about the time of its last transfer, so that the median difference of ends
between two ranks is that of their clocks. How far the ends of single collectives are apart after that is the residual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddpsim.common.errors import TraceError
from ddpsim.explaining.ranks import TracedRank
from ddpsim.trace.metrics import quantile

_STRANGERS = 0.25
"""Median distance of aligned ends, as a share of the step, from which on the traces are of different runs.

Ranks of one run end a collective within a transfer; on a crowded machine single ones came 0.3 of a step apart. By
hand."""
_ELSEWHEN = 1.0
"""Steps by which ranks on one clock are apart from which on they are not in the same step."""

Key = tuple[int, int]
"""Numbers of the step and of the collective in it, which are the same on all ranks."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """How the clocks of ranks were brought together."""

    offsets_s: Mapping[int, float]
    """By rank, what was added to its clock; all zero where the clocks agreed already."""
    residual_s: float
    """How far apart two ranks end the same collective afterwards, 90th percentile."""
    collectives: int
    """How many were matched."""

    @property
    def agreed(self) -> bool:
        """Whether the clocks agreed as they were."""
        return not any(self.offsets_s.values())


def align_ranks(ranks: Sequence[TracedRank]) -> tuple[tuple[TracedRank, ...], Alignment]:
    """Return the ranks on the clock of the first, and how that was done.

    Raises:
        TraceError: ranks that have no step or no collective in common, or whose collectives do not end together.
    """
    first = ranks[0]
    ends = _find_ends(first)
    offsets, apart, matched = {_rank(first): 0.0}, [0.0], len(ends)
    for rank in ranks[1:]:
        _check_alike(first, rank)
        others = _find_ends(rank)
        common = sorted(ends.keys() & others.keys())
        if not common and ends and others:
            what = f"has no step in common with {first.place}"
            raise TraceError(what, place=rank.place, remedy="give traces of the same steps of one run")
        if not common:
            offsets[_rank(rank)] = 0.0
            continue
        differences = [ends[key] - others[key] for key in common]
        middle = median(differences)
        spread = quantile([abs(each - middle) for each in differences], 0.9)
        step_s = median(it.iteration_s for it in rank.iterations)
        # Ranks of one host share a clock: a difference there is real, and moving it would hide a late rank. One
        # within twice the spread of the ends is noise, and moves nothing either.
        shared = rank.clock is not None and rank.clock == first.clock
        if shared and abs(middle) > _ELSEWHEN * step_s:
            what = f"its steps are {abs(middle):.3g} s from those of {first.place} on the clock of {rank.clock}"
            raise TraceError(what, place=rank.place, remedy="give traces of the same steps of one run")
        offset = 0.0 if shared or abs(middle) <= 2 * spread else middle
        offsets[_rank(rank)] = offset
        apart.append(quantile([abs(each - offset) for each in differences], 0.9))
        matched = min(matched, len(common))
        # One collective can always be aligned; from two on those of different runs stay apart.
        usual = median(abs(each - offset) for each in differences)
        if usual > _STRANGERS * step_s and len(common) > 1:
            what = (
                f"its collectives end {usual * 1e3:.3g} ms apart from those of {first.place}, in steps of "
                f"{step_s * 1e3:.3g} ms: of another run, or other steps"
            )
            raise TraceError(what, place=rank.place, remedy="give traces of the same steps of one run")
    moved = tuple(rank.shift(offsets[_rank(rank)]) for rank in ranks)
    return moved, Alignment(offsets, max(apart), matched if len(ranks) > 1 else 0)


def _rank(rank: TracedRank) -> int:
    assert rank.rank is not None
    return rank.rank


def _find_ends(rank: TracedRank) -> dict[Key, float]:
    return {
        (it.index, c.index): c.finished_s
        for it in rank.iterations
        for c in it.collectives
        if c.is_of_all(rank.world_size)
    }


def _check_alike(one: TracedRank, other: TracedRank) -> None:
    """Refuse ranks whose collectives are of other sizes: another model, or another plan."""
    sizes = {(it.index, c.index): c.size_bytes for it in one.iterations for c in it.collectives if c.own}
    for it in other.iterations:
        for c in it.collectives:
            known = sizes.get((it.index, c.index))
            if known is not None and c.own and c.size_bytes is not None and known != c.size_bytes:
                what = (
                    f"collective {c.index} of step {it.index} is of {c.size_bytes:,} B, in {one.place} of "
                    f"{known:,} B: traces of different runs"
                )
                raise TraceError(what, place=other.place, remedy="give each run a folder of its own")
