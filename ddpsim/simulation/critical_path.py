"""The longest path through the graph of a run: what a step waited for, from its end back to its start.

A node could begin when the last of what it comes after had ended: those before it on its resource, the host that
queued it, what it was told to wait for, of a collective the last rank. Followed back from the end of the last
iteration, these leave no moment out, so that the seconds of the path sum to the time that it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from ddpsim.simulation.graph import ORIGIN, Cause, Collective, NodeKind, StepGraph
from ddpsim.simulation.run import NodeTimes

HOST, LATENCY, BETWEEN_NODES, INSIDE_NODE, ENDS = (
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
    Cause.HOST: HOST,
}
RESOURCES: Mapping[str, tuple[str, ...]] = {
    "computation": tuple(CAUSES[each] for each in (Cause.FORWARD, Cause.BACKWARD, Cause.OPTIMIZER)),
    "host": (HOST,),
    "bandwidth between nodes": (BETWEEN_NODES,),
    "bandwidth inside a node": (INSIDE_NODE,),
    "latency": (LATENCY,),
}
"""What one can have more of, and the causes whose time that shortens."""

Shares = Callable[[Collective], Sequence[tuple[str, float]]]
"""Says of a collective's time with nothing beside it which causes it has, and their shares, which sum to 1."""

Path = dict[str, float]
"""Seconds by cause."""


def critical_path(graph: StepGraph, times: NodeTimes, begin: int, last: int, shares: Shares) -> Path:
    """Return the longest path from the end of `begin` to that of `last`, in seconds by cause.

    Where two could have held a node up, the one that ended later did; of two that ended at once, the resource's own.
    """
    before = _before(graph)
    found: Path = {}
    begin_s, node, now_s = times.end[begin], last, times.end[last]

    def spend(until_s: float, causes: Iterable[tuple[str, float]]) -> None:
        nonlocal now_s
        until_s = max(until_s, begin_s)
        for cause, share in causes if until_s < now_s else ():
            found[cause] = found.get(cause, 0.0) + share * (now_s - until_s)
        now_s = min(now_s, until_s)

    meetings = _meetings(graph)
    while now_s > begin_s and node != ORIGIN:
        if (collective := graph.collectives.get(node)) is not None:
            wire_s = min(times.wire[node], now_s)
            spend(wire_s, shares(collective))
            if times.begin[node] < wire_s:
                node = _last_to_arrive(meetings[collective.lane, collective.number], times, wire_s)
        place = (node, *before.get(node, ()))
        held_up = _latest(graph, times, place, now_s)
        spend(times.end[held_up], ((_cause(graph, node), 1.0),))
        node = held_up
    return found


def savings(path: Path, percent: float = 1.0) -> Path:
    """Return by resource how many seconds of `path` are saved by `percent` more of it: a rate that much higher.

    The first derivative of the longest path, which another path may overtake.
    """
    share = percent / (100 + percent)
    return {name: share * sum(path.get(cause, 0.0) for cause in causes) for name, causes in RESOURCES.items()}


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
