"""The longest path through the graph of a run: what a step waited for, from its end back to its start.

A node could begin when the last of what it comes after had ended: those before it on its resource, the host that
queued it, what it was told to wait for, of a collective the last rank. Followed back from the end of the last
iteration, these leave no moment out, so that the seconds of the path sum to the time that it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ddpsim.simulation.graph import ORIGIN, Cause, Collective, NodeKind, StepGraph
from ddpsim.simulation.run import NodeTimes
from ddpsim.trace.records import COMPUTE, HOST, PathSpan, communication_stream

LAUNCHES, LATENCY, BETWEEN_NODES, INSIDE_NODE, ENDS = (
    "host launches",
    "communication latency",
    "bandwidth between nodes",
    "bandwidth inside a node",
    "what the ends of a message keep up with",
)
CAUSES: Mapping[Cause, str] = {
    Cause.OTHER: "other",
    Cause.INPUT: "input",
    Cause.FORWARD: "forward",
    Cause.BACKWARD: "backward",
    Cause.OPTIMIZER: "optimizer",
    Cause.DDP: "hooks and copies of DDP",
    Cause.HOST: LAUNCHES,
}
RESOURCES: Mapping[str, tuple[str, ...]] = {
    "computation": tuple(CAUSES[each] for each in (Cause.FORWARD, Cause.BACKWARD, Cause.OPTIMIZER)),
    "host": (LAUNCHES,),
    "bandwidth between nodes": (BETWEEN_NODES,),
    "bandwidth inside a node": (INSIDE_NODE,),
    "latency": (LATENCY,),
}
"""What one can have more of, and the causes whose time that shortens."""

Shares = Callable[[Collective], Sequence[tuple[str, float]]]
"""Says of a collective's time with nothing beside it which causes it has, and their shares, which sum to 1."""

LAST_RANK = "last rank"
"""What a rank is called that stands for the last of several."""


def critical_path(graph: StepGraph, times: NodeTimes, begin: int, last: int, shares: Shares) -> list[PathSpan]:
    """Return the longest path from the end of `begin` to that of `last`, in order of time.

    Where two could have held a node up, the one that ended later did; of two that ended at once, the resource's own.
    """
    before = _before(graph)
    found: list[tuple[int, str, float, float]] = []
    begin_s, node, now_s = times.end[begin], last, times.end[last]

    def spend(node: int, until_s: float, causes: Sequence[tuple[str, float]]) -> None:
        nonlocal now_s
        until_s = max(until_s, begin_s)
        whole_s = now_s - until_s
        for cause, share in reversed(causes) if whole_s > 0 else ():
            found.append((node, cause, max(until_s, now_s - share * whole_s), now_s))
            now_s = found[-1][2]
        now_s = min(now_s, until_s)

    meetings = _meetings(graph)
    while now_s > begin_s and node != ORIGIN:
        if (collective := graph.collectives.get(node)) is not None:
            wire_s = min(times.wire[node], now_s)
            spend(node, wire_s, shares(collective))
            if times.begin[node] < wire_s:
                node = _last_to_arrive(meetings[collective.lane, collective.number], times, wire_s)
        place = (node, *before.get(node, ()))
        held_up = _latest(graph, times, place, now_s)
        spend(node, times.end[held_up], ((_cause(graph, node), 1.0),))
        node = held_up
    return _spans(graph, found[::-1])


def savings(path: Mapping[str, float], percent: float = 1.0) -> dict[str, float]:
    """Return by resource how many seconds of `path` are saved by `percent` more of it: a rate that much higher.

    The first derivative of the longest path, which another path may overtake.
    """
    share = percent / (100 + percent)
    return {name: share * sum(path.get(cause, 0.0) for cause in causes) for name, causes in RESOURCES.items()}


def _spans(graph: StepGraph, found: Sequence[tuple[int, str, float, float]]) -> list[PathSpan]:
    """Return nodes, causes and times as spans; what is of one cause on one stream without a break is one."""
    stream_of = _streams(graph, {node for node, *_ in found})
    spans: list[PathSpan] = []
    for node, cause, start_s, end_s in found:
        stream = stream_of.get(node, "delays")
        if spans and (spans[-1].stream, spans[-1].cause) == (stream, cause):
            spans[-1] = replace(spans[-1], end_s=end_s)
        else:
            spans.append(PathSpan(stream=stream, cause=cause, start_s=start_s, end_s=end_s))
    return spans


def _streams(graph: StepGraph, nodes: set[int]) -> dict[int, str]:
    """Return the stream of each of `nodes`, by the name that a trace gives it."""
    found: dict[int, str] = {}
    for place, rank in enumerate(graph.ranks):
        whose = "" if place == 0 else f"{LAST_RANK if rank.number < 0 else f'rank {rank.number}'}: "
        lanes = ((communication_stream(lane), mine) for lane, mine in enumerate(rank.lanes))
        computing = ((COMPUTE if rank.one_thread else HOST, rank.host), (COMPUTE, rank.compute))
        for name, mine in (*computing, ("copies", rank.copies), *lanes):
            found.update((node, whose + name) for node in mine if node in nodes)
    return found


def _before(graph: StepGraph) -> dict[int, tuple[int, ...]]:
    """Return the nodes before each on its resource: of a lane all, for several are in flight."""
    found: dict[int, tuple[int, ...]] = {}
    for rank in graph.ranks:
        for nodes in (rank.host, rank.compute, rank.copies):
            found.update((after, (first,)) for first, after in pairwise(nodes))
        for nodes in rank.lanes:
            found.update((node, tuple(nodes[max(0, place - 2) : place])) for place, node in enumerate(nodes))
    return found


def _meetings(graph: StepGraph) -> dict[tuple[int, int], list[int]]:
    """Return by lane and number the nodes of all ranks that meet there."""
    found: dict[tuple[int, int], list[int]] = {}
    for node, collective in graph.collectives.items():
        found.setdefault((collective.lane, collective.number), []).append(node)
    return found


def _last_to_arrive(nodes: Sequence[int], times: NodeTimes, wire_s: float) -> int:
    return max(nodes, key=lambda node: times.begin[node] if times.begin[node] <= wire_s else -1.0)


def _latest(graph: StepGraph, times: NodeTimes, place: Sequence[int], now_s: float) -> int:
    """Return which of what a node comes after ended last, no later than `now_s`."""
    node, *before = place
    candidates = (*before, *graph.after[node], graph.queued[node])
    ended = [each for each in candidates if times.end[each] <= now_s]
    return max(ended, key=lambda each: times.end[each], default=ORIGIN)


def _cause(graph: StepGraph, node: int) -> str:
    """Return what the time is of that a node takes after all that it comes after."""
    kind = graph.kind[node]
    if kind is NodeKind.COLLECTIVE:
        return LATENCY
    return CAUSES[Cause.INPUT] if kind in (NodeKind.LOAD, NodeKind.COPY) else CAUSES[graph.cause[node]]
