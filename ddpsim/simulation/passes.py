"""Passes over a recorded iteration: of a compiled step, whose gradients come together, and without layers left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.compiled import graph_splits
from ddpsim.bucketing.drop import DropPlan
from ddpsim.errors import WorkloadError
from ddpsim.jobs.simulated import Options
from ddpsim.simulation.pace import IterationProfile
from ddpsim.workload import Workload
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.operators import NARROW
from ddpsim.workload.profile import Seconds

EDGE_PASSES = 2
"""Through memory of what crosses from one graph to the next, in forward, and of its gradient in backward: written, and
read."""
FORWARD_SHARE = 0.5
"""Of the host time of one graph, what forward takes; the rest is backward's."""


def graphs_of(workload: Workload, options: Options) -> list[tuple[int, ...]]:
    """Return the graphs into which torch.compile splits the step of `workload`; none where it is not compiled."""
    if not options.compiled:
        return []
    given = None if options.plan is None else options.plan.call.caps
    return graph_splits(workload.parameters, given or options.caps, workload.arrival_order())


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


def in_graphs(
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
        host=_at_ends(pace.host, places, of_place) + extra_s,
        work=_at_ends(pace.work, places, of_place) + edges,
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


def dropped_by(plan: DropPlan | None, cycle: int) -> Callable[[int], frozenset[int]]:
    """Return, by iteration, the parameters of the layers it leaves out.

    Args:
        plan: which layers; its iterations count from 1, as the executor's do, and are the synchronised ones: local
            steps leave out what the step that ends their cycle does.
        cycle: iterations from one synchronised step to the next.
    """
    return lambda iteration: frozenset() if plan is None else plan.parameters_dropped(iteration // cycle + 1)


def check_left(plan: DropPlan | None, paces: Iterable[IterationProfile], parameters: Sequence[Parameter]) -> None:
    """Raise where leaving layers out could leave a recorded iteration no gradient, but buckets to reduce.

    Its rank would never start them, and the others would wait for it, as in a real run.

    Raises:
        WorkloadError: an iteration whose gradients are all of layers that may be left out, of a model that has others.
    """
    layers = () if plan is None else plan.layers
    may_go = {index for layer in layers if layer.probability > 0 for index in layer.parameters}
    if len(may_go) == len(parameters):
        return
    for number, pace in enumerate(paces):
        if may_go.issuperset(pace.order):
            what = f"recorded iteration {number} has gradients of no layer that stays"
            raise WorkloadError(what, place="drop", remedy="name fewer layers, or record other iterations")


def leaving_out(
    pace: Callable[[int], IterationProfile], dropped: Callable[[int], Collection[int]], parameters: Sequence[Parameter]
) -> Callable[[int], IterationProfile]:
    """Return `pace` without what `dropped` names in each iteration."""

    def left(iteration: int) -> IterationProfile:
        out = dropped(iteration)
        return without(pace(iteration), out, parameters) if out else pace(iteration)

    return left


def without(pace: IterationProfile, dropped: Collection[int], parameters: Sequence[Parameter]) -> IterationProfile:
    """Return what is left of a pace where the layers that hold `dropped` are not computed.

    A gradient takes with it the time since the gradient before, which its layer's backward filled. Forward is known
    as a whole only: it shrinks by the same share as backward, the optimizer by the share of bytes that get no gradient.
    """
    kept = [place for place, index in enumerate(pace.order) if index not in dropped]
    order = tuple(pace.order[place] for place in kept)
    host, work, lag = pace.host[kept], pace.work[kept], pace.lag[kept]
    host_share, work_share = _share(host.sum(), pace.host.sum()), _share(work.sum(), pace.work.sum())
    size_share = _share(sum(parameters[i].size_bytes for i in order), sum(parameters[i].size_bytes for i in pace.order))
    return replace(
        pace,
        forward_host=pace.forward_host * host_share,
        forward_work=pace.forward_work * work_share,
        order=order,
        host=host,
        work=work,
        lag=lag,
        optimizer_host=pace.optimizer_host * size_share,
        optimizer_work=pace.optimizer_work * size_share,
        idle_s=pace.idle_s * work_share,
    )


def not_using(
    pace: IterationProfile, own: Collection[int], everybodys: Collection[int], parameters: Sequence[Parameter]
) -> IterationProfile:
    """Return the pace of a rank that does not use `own` parameters, of which no rank uses `everybodys`.

    What another rank uses has the mean of the gradients on this one too, which its optimizer updates by.
    """
    if not own:
        return pace
    left = without(pace, own, parameters)
    whole = without(pace, everybodys, parameters)
    return replace(left, optimizer_host=whole.optimizer_host, optimizer_work=whole.optimizer_work)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 1.0
