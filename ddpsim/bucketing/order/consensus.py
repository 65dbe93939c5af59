"""One order for all ranks, from what each of them expects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, get_args

from ddpsim.common.errors import UnknownNameError

Consensus = Literal["rank0", "mean", "slowest"]
CONSENSUS: tuple[Consensus, ...] = get_args(Consensus)


def consensus(by_rank: Sequence[Sequence[float]], how: str = "rank0") -> list[float]:
    """Return one ready time a parameter from those of all ranks; every rank works out the same.

    Args:
        by_rank: expected ready times by rank and registration index, NaN where a rank knows none.
        how: `rank0`, as torch; `mean` over ranks; or `slowest`, the latest rank's, since a collective starts when the
            last rank arrives. A parameter that rank 0 does not know gets the mean of the others.

    Returns:
        Times by registration index; NaN where no rank knows one.
    """
    if how not in CONSENSUS:
        raise UnknownNameError.among("consensus", how, CONSENSUS)
    return [_agree_times(times, how) for times in zip(*by_rank, strict=True)]


def arrange(ready: Sequence[float], unused: str = "last") -> list[int]:
    """Return all registration indices by expected ready time; at equal times the later registered comes first.

    Args:
        ready: expected times by registration index; NaN where no gradient ever came.
        unused: where those go: `last`, as torch's rebuild has them, or `first`, where they are marked ready when
            backward starts (find_unused_parameters) and would only hold back the bucket they share.
    """
    if unused not in ("first", "last"):
        raise UnknownNameError.among("place of unused parameters", unused, ("first", "last"))
    known = [index for index in range(len(ready)) if not math.isnan(ready[index])]
    never = [index for index in range(len(ready)) if math.isnan(ready[index])]
    ordered = sorted(known, key=lambda index: (ready[index], -index))
    return never + ordered if unused == "first" else ordered + never


def _agree_times(times: Sequence[float], how: str) -> float:
    known = [time for time in times if not math.isnan(time)]
    if not known:
        return math.nan
    if how == "rank0":
        return fmean(known) if math.isnan(times[0]) else times[0]
    return max(known) if how == "slowest" else fmean(known)
