"""What it costs that torch.compile splits a step into a graph a bucket: `graph_s` of the host, and what crosses a cut.

Gradients of a graph come together when its backward is over. What fusion would have kept in registers, or computed
again, is written by one graph and read by the next (`Operator.edge_bytes`), and so is its gradient in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.bucketing.compiled import graph_splits
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload
from ddpsim.workload.gpus import AchievedGpu, gpu_of
from ddpsim.workload.iteration_profile import IterationProfile
from ddpsim.workload.operators import NARROW, Operator
from ddpsim.workload.times import Seconds

FORWARD_SHARE = 0.5
"""Of the host time of one graph, what forward takes; the rest is backward's."""


def graphs_of(workload: Workload, options: Options) -> list[tuple[int, ...]]:
    """Return the graphs into which torch.compile splits the step of `workload`; none where it is not compiled."""
    if not options.compiled:
        return []
    caps = None if options.plan is None else options.plan.call.caps
    return graph_splits(workload.parameters, caps or options.caps, workload.arrival_order())


def split_into_graphs(
    paces: Sequence[IterationProfile],
    workload: Workload,
    options: Options,
    factor: float,
    graph_s: float,
    passes: float,
) -> list[IterationProfile]:
    """Return `paces` of a step that torch.compile splits into a graph a bucket.

    Args:
        factor: on the device's time of the rank, beside that of the options.
        graph_s: host time that one more graph takes.
        passes: through memory, of what crosses a cut.
    """
    graphs = graphs_of(workload, options)
    cut_s = cuts_s(workload, graphs, gpu_of(workload.gpu, workload.provenance), passes)
    edges_s = [each * options.scale_compute * factor for each in cut_s or [0.0] * len(graphs)]
    return [group_by_graphs(each, graphs, graph_s, edges_s) for each in paces]


def cuts_s(
    workload: Workload, graphs: Sequence[tuple[int, ...]], gpu: AchievedGpu | None, passes: float
) -> list[float] | None:
    """Return the device's time of the cut before each graph in forward; that of the first, which has none, is 0.

    Args:
        gpu: whose memory it passes; None where nobody knows it.
        passes: through memory, of what crosses a cut.

    Returns:
        None where nobody counted what crosses.
    """
    counted = _counted(workload)
    if counted is None or gpu is None:
        return None
    forward, uses, width = counted
    firsts = [[use for index in members if (use := uses[index]) is not None] for members in graphs]
    edges = [forward[min(each)].edge_bytes if each else 0.0 for each in firsts]
    return [passes * width * edge / gpu.achieved_Bps for edge in edges[:-1]] + [0.0] * bool(graphs)


def _counted(workload: Workload) -> tuple[Sequence[Operator], Sequence[int | None], float] | None:
    """Return the operators of forward, which of them first reads each parameter, and a factor on their bytes.

    None where what crosses operators was not counted: of any forward that was, something crosses some.
    """
    operators = workload.operators
    if operators is None:
        return None
    under = operators.amp if workload.precision == "amp" else None
    forward, uses = (operators.forward, operators.forward_use) if under is None else (under.forward, under.forward_use)
    if uses is None or not any(each.edge_bytes for each in forward):
        return None
    return forward, uses, 0.5 if under is None and workload.precision in NARROW else 1.0


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
    hooks_s = np.cumsum(intervals)[list(places)]
    ends = np.zeros(max(graphs) + 1)
    np.maximum.at(ends, list(graphs), hooks_s)
    together: Seconds = np.maximum.accumulate(ends)[list(graphs)]
    return np.diff(together, prepend=0.0)


def _longest(lags: Seconds, places: Sequence[int], graphs: Sequence[int]) -> Seconds:
    longest = np.zeros(max(graphs) + 1)
    np.maximum.at(longest, list(graphs), lags[list(places)])
    found: Seconds = longest[list(graphs)]
    return found


@dataclass(frozen=True, slots=True)
class GraphCuts:
    """What the cuts of a compiled step cost one micro-batch.

    Attributes:
        graphs: how many there are.
        host_s: of all graphs but the first.
        device_s: of what crosses the cuts, forward and backward; None where nobody counted it.
    """

    graphs: int
    host_s: float
    device_s: float | None

    @classmethod
    def of(cls, workload: Workload, options: Options, graph_s: float, passes: float) -> GraphCuts | None:
        """Return those of `workload`; None where it is not split.

        Args:
            graph_s: host time of one more graph.
            passes: through memory, of what crosses a cut.
        """
        graphs = graphs_of(workload, options)
        if len(graphs) < 2:
            return None
        once_s = cuts_s(workload, graphs, gpu_of(workload.gpu, workload.provenance), passes)
        return cls(
            len(graphs),
            (len(graphs) - 1) * graph_s,
            None if once_s is None else 2 * sum(once_s) * options.scale_compute,
        )

    def text(self, step_s: float) -> str:
        """Return what they cost of a micro-batch of `step_s`, a sentence without a full stop."""
        host = f"{self.host_s * 1e3:.3g} ms of the host's time (`graph_s`)"
        if self.device_s is None:
            return (
                f"torch.compile splits the step into {self.graphs} graphs, which costs {host}; what crosses from one "
                "to the next was not counted and costs nothing here: estimate the step (`ddpexec estimate --step`)"
            )
        return (
            f"torch.compile splits the step into {self.graphs} graphs, which costs {self.device_s * 1e3:.3g} ms of the "
            f"device's time ({self.device_s / step_s:.1%} of a micro-batch; `graph_passes`, 0 leaves it out) and {host}"
        )
