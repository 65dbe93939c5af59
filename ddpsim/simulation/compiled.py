"""Iterations of a compiled step: all gradients of a graph come at once, when its backward is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ddpsim.bucketing.compiled import graph_splits
from ddpsim.jobs.simulated import Options
from ddpsim.simulation.pace import Pace
from ddpsim.workload import Workload
from ddpsim.workload.profile import Seconds

FORWARD_SHARE = 0.5
"""Of the host time of one graph, what forward takes; the rest is backward's."""


def graphs_of(workload: Workload, options: Options) -> list[tuple[int, ...]]:
    """Return the graphs into which torch.compile splits the step of `workload`; none where it is not compiled."""
    if not options.compiled:
        return []
    given = None if options.plan is None else options.plan.call.caps
    return graph_splits(workload.parameters, given or options.caps, workload.arrival_order())


def in_graphs(pace: Pace, graphs: Sequence[tuple[int, ...]], graph_s: float) -> Pace:
    """Return `pace` with the gradients of each graph at its end, and the host's time of each graph but the first.

    Args:
        pace: of a step operator by operator.
        graphs: registration indices, the first to run backward first.
        graph_s: host time that one more graph takes.
    """
    if not graphs:
        return pace
    number = {index: graph for graph, members in enumerate(graphs) for index in members}
    places = sorted(range(len(pace.order)), key=lambda place: number[pace.order[place]])
    of_place = [number[pace.order[place]] for place in places]
    begins = [place == 0 or of_place[place] != of_place[place - 1] for place in range(len(places))]
    extra_s = [graph_s * (1 - FORWARD_SHARE) * (begin and place > 0) for place, begin in enumerate(begins)]
    more = (len(graphs) - 1) * graph_s * FORWARD_SHARE
    return replace(
        pace,
        forward_host=pace.forward_host + more,
        order=tuple(pace.order[place] for place in places),
        host=_at_ends(pace.host, places, of_place) + extra_s,
        work=_at_ends(pace.work, places, of_place),
        lag=_longest(pace.lag, places, of_place),
    )


def _at_ends(intervals: Seconds, places: Sequence[int], graphs: Sequence[int]) -> Seconds:
    """Return the intervals from one gradient to the next where each graph's come together, at the last of them."""
    moments = np.cumsum(intervals)[list(places)]
    ends = np.zeros(max(graphs) + 1)
    np.maximum.at(ends, list(graphs), moments)
    together: Seconds = np.maximum.accumulate(ends)[list(graphs)]
    return np.diff(together, prepend=0.0)


def _longest(lags: Seconds, places: Sequence[int], graphs: Sequence[int]) -> Seconds:
    longest = np.zeros(max(graphs) + 1)
    np.maximum.at(longest, list(graphs), lags[list(places)])
    found: Seconds = longest[list(graphs)]
    return found
