"""What a run of a graph leaves behind: the iterations of each rank, and what a step waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ddpsim.common.operation import Operation
from ddpsim.simulation.graph import (
    BETWEEN_DEVICES,
    LATENCY,
    LAUNCHES,
    ORIGIN,
    Cause,
    Collective,
    Interval,
    IterationNodes,
    MessageNodes,
    NodeKind,
    RankGraph,
    StepGraph,
)
from ddpsim.simulation.run import NodeTimes
from ddpsim.trace.records import (
    COMPUTE,
    HOST,
    PEER_COPY,
    BucketTimes,
    CollectiveTimes,
    Gradient,
    Iteration,
    PartTimes,
    PathSpan,
    communication_stream,
    compute_stream,
)

_NEVER = float("inf")


def iterations_of(graph: StepGraph, rank: RankGraph, times: NodeTimes) -> list[Iteration]:
    """Return the iterations of a rank of a graph, in order."""
    return [_iteration(graph, rank, nodes, times) for nodes in rank.iterations]


def _iteration(graph: StepGraph, rank: RankGraph, nodes: IterationNodes, times: NodeTimes) -> Iteration:
    end = times.end

    def total(intervals: Iterable[Interval]) -> float:
        return sum(end[last] - end[first] for first, last in intervals)

    forward_s, backward_s, optimizer_s = total(nodes.forward), total(nodes.backward), total(nodes.optimizer)
    broadcast_s, held_up_s = total(nodes.broadcast), total(nodes.held_up)
    input_s = None if nodes.input is None else total([nodes.input])
    layers_s = sum(end[each.ended] - end[each.begun] for each in nodes.layers)
    if not rank.one_thread:
        # On a device an interval is from event to event of its stream, whatever lay in between. Forward begins with
        # the iteration, so that batch, broadcast and waits are taken off; backward holds copies and waits of DDP. A
        # thread notes each stretch of computing by itself.
        in_forward_s = total((each.begun, each.ended) for each in nodes.layers if each.forward)
        forward_s -= (input_s or 0.0) + broadcast_s + held_up_s + in_forward_s
        backward_s -= nodes.copied_s + _idle_s(nodes, times)
        # It ends where the next iteration begins, when it has no interval of its own.
        optimizer_s += 0.0 if nodes.optimizer_begun is None else end[nodes.end] - end[nodes.optimizer_begun]
    return Iteration(
        rank=rank.number,
        index=nodes.index,
        start_s=end[nodes.start],
        end_s=end[nodes.end],
        forward_s=forward_s,
        backward_compute_s=backward_s,
        exposed_comm_s=sum(end[node] - times.begin[node] for node in nodes.exposed),
        buffer_broadcast_s=broadcast_s,
        optimizer_s=optimizer_s,
        held_up_s=held_up_s,
        input_s=input_s,
        synced=nodes.synced,
        stepped=nodes.stepped,
        buckets=tuple(record for sent in nodes.messages if (record := _message(sent, times)) is not None),
        gradients=tuple(
            Gradient(parameter=parameter, hook_s=end[hook], ready_s=end[ready])
            for parameter, hook, ready in nodes.gradients
        ),
        layer_comm_s=layers_s if nodes.layers else None,
        parts=tuple(
            PartTimes(
                device=device,
                name=PEER_COPY if name == "copy" else name,
                started_s=end[begun],
                finished_s=end[ended],
            )
            for device, name, (begun, ended) in nodes.parts
        ),
        others=tuple(
            CollectiveTimes.of_layer(index, Operation(each.operation), each.size_bytes, times.begin[node], end[node])
            for index, (node, each) in enumerate(
                ((one.sent, graph.collectives[one.sent]) for one in nodes.layers), len(nodes.messages)
            )
        ),
    )


def in_model(record: Iteration, indices: Sequence[int]) -> Iteration:
    """Return the iteration of a rank that has a part of a model, with parameters numbered as in the whole.

    Args:
        indices: registration indices in the model, by those of the rank.
    """
    return replace(
        record,
        buckets=tuple(replace(each, parameters=tuple(indices[i] for i in each.parameters)) for each in record.buckets),
        gradients=tuple(replace(each, parameter=indices[each.parameter]) for each in record.gradients),
    )


def _idle_s(nodes: IterationNodes, times: NodeTimes) -> float:
    """Return for how long a device computed nothing in backward on account of DDP: what it idled more, and waited."""
    idled = [(times.idled[begun], times.idled[ended]) for begun, ended in nodes.backward]
    idled_s, waited_s = (sum(after[which] - before[which] for before, after in idled) for which in (0, 1))
    return max(0.0, idled_s - nodes.idle_s) + waited_s


def _message(sent: MessageNodes, times: NodeTimes) -> BucketTimes | None:
    """Return the record of a message; None where the run ended before it did."""
    finished = times.end[sent.last] + float(sent.planned.encoding.decode_s)
    written = finished if sent.written is None else times.end[sent.written]
    if written == _NEVER:
        return None
    return BucketTimes(
        index=sent.planned.number,
        size_bytes=sent.planned.size_bytes,
        parameters=sent.planned.parameters,
        ready_s=times.end[sent.ready],
        launched_s=times.end[sent.launched],
        started_s=times.begin[sent.first],
        wire_s=times.wire[sent.first],
        finished_s=finished,
        written_s=written,
        operation=sent.planned.operation,
        device=sent.planned.device,
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

Shares = Callable[[Collective], Sequence[tuple[str, float]]]
"""Says of a collective's time with nothing beside it which causes it has, and their shares, which sum to 1."""

LAST_RANK = "last rank"
"""What a rank is called that stands for the last of several."""


def critical_path(graph: StepGraph, times: NodeTimes, begin: int, last: int, shares: Shares) -> list[PathSpan]:
    """Return the longest path from the end of `begin` to that of `last`, in order of time.

    Where two could have held a node up, the one that ended later did; of two that ended at once, the resource's own.
    """
    before = _find_before(graph)
    steps: list[tuple[int, str, float, float]] = []
    begin_s, node, now_s = times.end[begin], last, times.end[last]

    def spend(node: int, until_s: float, causes: Sequence[tuple[str, float]]) -> None:
        nonlocal now_s
        until_s = max(until_s, begin_s)
        whole_s = now_s - until_s
        for number, (cause, share) in reversed([*enumerate(causes)]) if whole_s > 0 else ():
            # Shares sum to one but for rounding and for what is too little to name: the first cause takes what is left.
            start_s = until_s if number == 0 else max(until_s, now_s - share * whole_s)
            steps.append((node, cause, start_s, now_s))
            now_s = start_s
        now_s = min(now_s, until_s)

    # By lane and number, the nodes of all ranks that meet there.
    meetings: dict[tuple[int, int], list[int]] = {}
    for each, collective in graph.collectives.items():
        meetings.setdefault((collective.lane, collective.number), []).append(each)
    # Back in time from `last`, from each node to the one that held it up, until `begin`. `now_s` is the moment before
    # which nothing is explained yet: spans join without gaps, for `spend` moves it and nothing else does.
    while now_s > begin_s and node != ORIGIN:
        if (sent := graph.collectives.get(node)) is not None:
            wire_s = min(times.wire[node], now_s)
            spend(node, wire_s, shares(sent))
            if times.begin[node] < wire_s:
                # The rank waited for others: the path goes on, on the rank that came last.
                came = [each for each in meetings[sent.lane, sent.number] if times.begin[each] <= wire_s]
                node = max(came, key=times.begin.__getitem__)
        candidates = (*before.get(node, ()), *graph.after[node], graph.queued[node])
        ended = [each for each in candidates if times.end[each] <= now_s]
        held_up = max(ended, key=times.end.__getitem__, default=ORIGIN)
        # The node's own time, after all that it comes after.
        cause, kind = CAUSES[graph.cause[node]], graph.kind[node]
        if kind is NodeKind.COLLECTIVE:
            cause = LATENCY
        elif kind is NodeKind.LOAD or (kind is NodeKind.COPY and graph.copies[node].source is None):
            cause = CAUSES[Cause.INPUT]
        elif kind is NodeKind.COPY:
            cause = BETWEEN_DEVICES
        spend(node, times.end[held_up], ((cause, 1.0),))
        node = held_up
    return _spans(graph, steps[::-1])


def _spans(graph: StepGraph, steps: Sequence[tuple[int, str, float, float]]) -> list[PathSpan]:
    """Return nodes, causes and times as spans; what is of one cause on one stream without a break is one."""
    stream_of = _streams(graph, {node for node, *_ in steps})
    spans: list[PathSpan] = []
    for node, cause, start_s, end_s in steps:
        stream = stream_of.get(node, "delays")
        if spans and (spans[-1].stream, spans[-1].cause) == (stream, cause):
            spans[-1] = replace(spans[-1], end_s=end_s)
        else:
            spans.append(PathSpan(stream=stream, cause=cause, start_s=start_s, end_s=end_s))
    return spans


def _streams(graph: StepGraph, nodes: set[int]) -> dict[int, str]:
    """Return the stream of each of `nodes`, by the name that a trace gives it."""
    stream_of: dict[int, str] = {}
    for place, rank in enumerate(graph.ranks):
        whose = "" if place == 0 else f"{LAST_RANK if rank.number < 0 else f'rank {rank.number}'}: "
        lanes = ((communication_stream(lane), mine) for lane, mine in enumerate(rank.lanes))
        streams = ((compute_stream(device), mine) for device, mine in enumerate(rank.streams))
        computing = ((COMPUTE if rank.one_thread else HOST, rank.host), *streams)
        for name, mine in (*computing, ("copies", rank.copies), *lanes):
            stream_of.update((node, whose + name) for node in mine if node in nodes)
    return stream_of


def _find_before(graph: StepGraph) -> dict[int, tuple[int, ...]]:
    """Return the nodes before each on its resource: of a lane all, for several are in flight."""
    before: dict[int, tuple[int, ...]] = {}
    for rank in graph.ranks:
        for nodes in (rank.host, *rank.streams, rank.copies):
            before.update((after, (first,)) for first, after in pairwise(nodes))
        for nodes in rank.lanes:
            before.update((node, tuple(nodes[max(0, place - 2) : place])) for place, node in enumerate(nodes))
    return before
