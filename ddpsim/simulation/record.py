"""What a run of a graph leaves behind: the iterations of each rank, with their buckets and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddpsim.simulation.graph import Interval, IterationNodes, MessageNodes, RankGraph
from ddpsim.simulation.run import NodeTimes
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.trace.records import BucketTimes, Gradient, Iteration

_NEVER = float("inf")


def iterations_of(rank: RankGraph, setting: RankConfiguration, times: NodeTimes) -> Iterator[Iteration]:
    """Yield the iterations of a rank, in order."""
    for nodes in rank.iterations:
        yield _iteration(rank, nodes, setting, times)


def _iteration(rank: RankGraph, nodes: IterationNodes, setting: RankConfiguration, times: NodeTimes) -> Iteration:
    end, index = times.end, nodes.index

    def total(intervals: Iterable[Interval]) -> float:
        return sum(end[last] - end[first] for first, last in intervals)

    forward_s, backward_s, optimizer_s = total(nodes.forward), total(nodes.backward), total(nodes.optimizer)
    broadcast_s, held_up_s = total(nodes.broadcast), total(nodes.held_up)
    input_s = None if nodes.input is None else total([nodes.input])
    if not rank.one_thread:
        forward_s -= (input_s or 0.0) + broadcast_s + held_up_s
        backward_s -= nodes.copied_s + _stood_s(nodes, times)
        optimizer_s += 0.0 if nodes.optimizer_begun is None else end[nodes.end] - end[nodes.optimizer_begun]
    return Iteration(
        rank=rank.number,
        index=index,
        start_s=end[nodes.start],
        end_s=end[nodes.end],
        forward_s=forward_s,
        backward_compute_s=backward_s,
        exposed_comm_s=sum(end[node] - times.begin[node] for node in nodes.exposed),
        buffer_broadcast_s=broadcast_s,
        optimizer_s=optimizer_s,
        held_up_s=held_up_s,
        input_s=input_s,
        synced=setting.synced(index),
        stepped=setting.optimises(index),
        buckets=tuple(found for sent in nodes.messages if (found := _message(sent, times)) is not None),
        gradients=tuple(
            Gradient(parameter=parameter, hook_s=end[hook], ready_s=end[ready])
            for parameter, hook, ready in nodes.gradients
        ),
    )


def _stood_s(nodes: IterationNodes, times: NodeTimes) -> float:
    """Return for how long a device stood in backward on account of DDP: what it idled more, and waited."""
    [(begun, ended)] = nodes.backward
    idled_s, waited_s = (after - before for before, after in zip(times.stood[begun], times.stood[ended], strict=True))
    return max(0.0, idled_s - nodes.idle_s) + waited_s


def _message(sent: MessageNodes, times: NodeTimes) -> BucketTimes | None:
    """Return the record of a message; None where the run ended before it did."""
    finished = times.end[sent.last] + sent.decode_s
    written = finished if sent.written is None else times.end[sent.written]
    if written == _NEVER:
        return None
    return BucketTimes(
        index=sent.index,
        size_bytes=sent.size_bytes,
        parameters=sent.parameters,
        ready_s=times.end[sent.ready],
        launched_s=times.end[sent.launched],
        started_s=times.begin[sent.first],
        wire_s=times.wire[sent.first],
        finished_s=finished,
        written_s=written,
        operation=sent.operation,
    )
