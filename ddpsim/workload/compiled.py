"""A compiled step, whose gradients come graph by graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.iteration_profile import IterationProfile
from ddpsim.workload.operators import NARROW
from ddpsim.workload.profile import Seconds, Workload

EDGE_PASSES = 2
"""Through memory of what crosses from one graph to the next, in forward, and of its gradient in backward: written, and
read."""
FORWARD_SHARE = 0.5
"""Of the host time of one graph, what forward takes; the rest is backward's."""


def cuts_s(workload: Workload, graphs: Sequence[tuple[int, ...]], gpu: AchievedGpu | None) -> list[float]:
    """Return the device's time of the edge before each graph in forward, once; 0 of the first, and where not known.

    What crosses an edge is written by one graph and read by the next, which fusion would have kept in registers or
    computed again.
    """
    kept = workload.operators
    if kept is None or gpu is None:
        return [0.0] * len(graphs)
    under = kept.amp if workload.precision == "amp" else None
    forward, uses = (kept.forward, kept.forward_use) if under is None else (under.forward, under.forward_use)
    width = 0.5 if under is None and workload.precision in NARROW else 1.0
    firsts = [[use for index in members if uses and (use := uses[index]) is not None] for members in graphs]
    edges = [forward[min(each)].edge_bytes if each else 0.0 for each in firsts]
    return [EDGE_PASSES * width * edge / gpu.achieved_Bps for edge in edges[:-1]] + [0.0] * bool(graphs)


def group_by_graphs(
    pace: IterationProfile, graphs: Sequence[tuple[int, ...]], graph_s: float, edges_s: Sequence[float]
) -> IterationProfile:
    """Return `pace` with the gradients of each graph at its end, and the time of each graph but the first.

    Args:
        pace: of a step operator by operator.
        graphs: registration indices, the first to run backward first.
        graph_s: host time that one more graph takes.
        edges_s: device time of the edge before each graph, in forward and as much again in backward.
    """
    if not graphs:
        return pace
    number = {index: graph for graph, members in enumerate(graphs) for index in members}
    places = sorted(range(len(pace.order)), key=lambda place: number[pace.order[place]])
    of_place = [number[pace.order[place]] for place in places]
    begins = [place == 0 or of_place[place] != of_place[place - 1] for place in range(len(places))]
    extra_s = [graph_s * (1 - FORWARD_SHARE) * (begin and place > 0) for place, begin in enumerate(begins)]
    more = (len(graphs) - 1) * graph_s * FORWARD_SHARE
    edges = [edges_s[of_place[place] - 1] * (begin and place > 0) for place, begin in enumerate(begins)]
    return replace(
        pace,
        forward_host=pace.forward_host + more,
        forward_work=pace.forward_work + sum(edges_s),
        order=tuple(pace.order[place] for place in places),
        host=_move_to_ends(pace.host, places, of_place) + extra_s,
        work=_move_to_ends(pace.work, places, of_place) + edges,
        lag=_longest(pace.lag, places, of_place),
    )


def _move_to_ends(intervals: Seconds, places: Sequence[int], graphs: Sequence[int]) -> Seconds:
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
