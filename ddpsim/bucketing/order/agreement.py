"""How far two orders agree: Kendall's tau, over parameters and over buckets, and a report of many arrivals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from statistics import fmean

from ddpsim.bucketing.order.arrivals import Arrivals


def kendall_tau(first: Sequence[int], second: Sequence[int]) -> float:
    """Return Kendall's tau of two orders over the parameters that stand in both: 1 the same, -1 reversed.

    Pairs in the same order minus pairs in opposite order, over all pairs, in O(n log n). Orders with fewer than two
    parameters in common agree.
    """
    place = {index: n for n, index in enumerate(first)}
    places = [place[index] for index in second if index in place]
    pairs = len(places) * (len(places) - 1) // 2
    return 1.0 if pairs == 0 else 1.0 - 2.0 * _inversions(places) / pairs


def ready_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's tau of two tables of ready times, in which a parameter that goes unused comes after all others.

    Pairs in the same order minus pairs in opposite order, over the pairs that either table orders: 1 where the same
    parameters come in the same order, and only there. A pair of which one table says nothing, both being unused in it,
    counts against as half a swap, Fagin, Kumar and Sivakumar's penalty of 1/2 ("Comparing top k lists", 2003).

    Args:
        first, second: times by registration index, NaN where unused.
    """
    tables = [[math.inf if time != time else time for time in table] for table in (first, second)]
    pairs = sorted(zip(*tables, strict=True))
    together = _count_ties(pairs)
    ordered = len(pairs) * (len(pairs) - 1) // 2 - together
    if ordered == 0:
        return 1.0
    ties = [_count_ties(table) - together for table in tables]
    ranks = {time: place for place, time in enumerate(sorted(set(tables[1])))}
    swapped = _inversions([ranks[time] for _, time in pairs])
    return (ordered - sum(ties) - 2 * swapped) / ordered


def plan_tau(groups: Sequence[Sequence[int]], order: Iterable[int]) -> float:
    """Return Kendall's tau of a bucket plan and an arrival order, over the pairs that lie in different buckets.

    What happens inside a bucket delays nothing, so 1 says that every gradient of a bucket came before all those of
    the next ones. Parameters that `order` lacks are left out.
    """
    bucket_of = {index: number for number, group in enumerate(groups) for index in group}
    numbers = [bucket_of[index] for index in order if index in bucket_of]
    held = [0] * len(groups)
    for number in numbers:
        held[number] += 1
    pairs = (len(numbers) ** 2 - sum(count * count for count in held)) // 2
    return 1.0 if pairs == 0 else 1.0 - 2.0 * _inversions(numbers) / pairs


@dataclass(frozen=True, slots=True)
class OrderReport:
    """Says how far ranks and iterations disagree on the order of gradients.

    Attributes:
        parameters: how many arrived at least once.
        iterations, ranks: how many of each were recorded.
        between_ranks: mean tau over pairs of ranks in the same iteration; None with one rank.
        between_ranks_worst: (tau, iteration, rank, rank) of the worst pair.
        between_iterations: mean tau over successive iterations of the same rank; None with one iteration.
        between_iterations_worst: (tau, rank, iteration, iteration) of the worst pair.
        between_ranks_with_unused, between_iterations_with_unused: the same means, of taus in which a parameter that
            goes unused comes after all others: those above see only what both of a pair have used.
        unused: parameter to the share of backwards that brought it no gradient, for those above zero; parameters
            that never arrived are unknown to arrivals and listed where the caller gave their number.
    """

    parameters: int
    iterations: int
    ranks: int
    between_ranks: float | None
    between_ranks_worst: tuple[float, int, int, int] | None
    between_iterations: float | None
    between_iterations_worst: tuple[float, int, int, int] | None
    unused: dict[int, float]
    between_ranks_with_unused: float | None = None
    between_iterations_with_unused: float | None = None

    def document(self) -> dict[str, object]:
        """Return the report as a JSON object."""
        ranks, iterations = self.between_ranks_worst, self.between_iterations_worst
        return {
            "parameters": self.parameters,
            "iterations": self.iterations,
            "ranks": self.ranks,
            "kendall_tau_ranks": self.between_ranks,
            "kendall_tau_ranks_worst": ranks and {"tau": ranks[0], "iteration": ranks[1], "ranks": list(ranks[2:])},
            "kendall_tau_iterations": self.between_iterations,
            "kendall_tau_iterations_worst": iterations
            and {"tau": iterations[0], "rank": iterations[1], "iterations": list(iterations[2:])},
            "kendall_tau_ranks_with_unused": self.between_ranks_with_unused,
            "kendall_tau_iterations_with_unused": self.between_iterations_with_unused,
            "unused": {str(index): share for index, share in self.unused.items()},
        }


def order_report(arrivals: Sequence[Arrivals], count: int | None = None) -> OrderReport:
    """Compare arrivals of several ranks and iterations.

    Args:
        arrivals: in any order; at most one of each rank and iteration.
        count: parameters of the model; None is as many as ever arrived.
    """
    known = {(a.rank, a.iteration): a for a in arrivals}
    ranks, iterations = sorted({rank for rank, _ in known}), sorted({iteration for _, iteration in known})
    pairs = [(i, r, s) for i in iterations for r, s in combinations(ranks, 2) if (r, i) in known and (s, i) in known]
    successions = [(r, i, j) for r in ranks for i, j in pairwise(i for i in iterations if (r, i) in known)]
    across = [(kendall_tau(known[r, i].order, known[s, i].order), i, r, s) for i, r, s in pairs]
    along = [(kendall_tau(known[r, i].order, known[r, j].order), r, i, j) for r, i, j in successions]
    counts = _times_seen(arrivals)
    everyone = range(count) if count is not None else sorted(counts)
    width = max(everyone, default=-1) + 1
    ready = {key: replace(record, ready_s=None).list_ready(width) for key, record in known.items()}
    across_all = [ready_tau(ready[r, i], ready[s, i]) for i, r, s in pairs]
    along_all = [ready_tau(ready[r, i], ready[r, j]) for r, i, j in successions]
    return OrderReport(
        parameters=len(counts),
        iterations=len(iterations),
        ranks=len(ranks),
        between_ranks=fmean(pair[0] for pair in across) if across else None,
        between_ranks_worst=min(across, default=None),
        between_iterations=fmean(pair[0] for pair in along) if along else None,
        between_iterations_worst=min(along, default=None),
        between_ranks_with_unused=fmean(across_all) if across_all else None,
        between_iterations_with_unused=fmean(along_all) if along_all else None,
        unused={i: 1 - counts.get(i, 0) / len(arrivals) for i in everyone if counts.get(i, 0) < len(arrivals)},
    )


def _times_seen(arrivals: Iterable[Arrivals]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for record in arrivals:
        for index in record.order:
            counts[index] = counts.get(index, 0) + 1
    return counts


def _count_ties(values: Iterable[object]) -> int:
    """Return how many pairs of `values` are equal."""
    return sum(count * (count - 1) // 2 for count in Counter(values).values())


def _inversions(values: Sequence[int]) -> int:
    """Return the number of pairs i < j with values[i] > values[j], for values >= 0, by a Fenwick tree."""
    tree = [0] * (max(values, default=0) + 2)
    inversions = 0
    for count, value in enumerate(values):
        at_most, slot = 0, value + 1
        while slot > 0:
            at_most += tree[slot]
            slot &= slot - 1
        inversions += count - at_most
        slot = value + 1
        while slot < len(tree):
            tree[slot] += 1
            slot += slot & -slot
    return inversions
