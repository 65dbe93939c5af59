"""A graph written by hand is run: order of a stream, what it idles and waits, and what collectives take from it."""

import pytest
import simpy

from ddpsim.common.operation import Operation
from ddpsim.simulation.contention import UNDISTURBED, ComputeSlowdown, Processor, Share
from ddpsim.simulation.graph import Collective, NodeKind, RankGraph, StepGraph
from ddpsim.simulation.run import GraphRun


def one(size_bytes=1):
    return Collective(size_bytes, Operation.ALLREDUCE, 0, 0)


def alike(factor):
    return ComputeSlowdown(factor, lambda size_bytes: Share(0, 0))


class Device:
    """A graph of one rank with a host and a device."""

    def __init__(self):
        self.graph = StepGraph()
        self.rank = RankGraph(0, one_thread=False, lanes=[[]])
        self.graph.ranks.append(self.rank)
        self.host = 0

    def spend(self, seconds):
        self.host = self.graph.add(NodeKind.DELAY, seconds)
        self.rank.host.append(self.host)

    def queue(self, kind, seconds=0.0, after=()):
        self.rank.last = self.graph.add(kind, seconds, self.host, after)
        self.rank.compute.append(self.rank.last)
        return self.rank.last

    def later(self, seconds, *after):
        node = self.graph.add(NodeKind.DELAY, seconds, 0, after or (0,))
        self.rank.delays.append(node)
        return node

    def collective(self, *after):
        lane = self.rank.lanes[0]
        lane.append(self.graph.add(NodeKind.COLLECTIVE, 0.0, self.host, after))
        self.graph.collectives[lane[-1]] = Collective(1, Operation.ALLREDUCE, 0, len(lane) - 1)
        return lane[-1]

    def run(self, slowdown=UNDISTURBED, on_busy=lambda busy, moment_s: None, transfer_s=None, late_s=0.0, **given):
        self.queue(NodeKind.EVENT)
        env = simpy.Environment()
        transfer = None if transfer_s is None else lambda collective: env.timeout(transfer_s)
        run = GraphRun(env, self.graph, transfer, 1)
        processor = Processor(env, slowdown, lambda busy: on_busy(busy, env.now), late_s=late_s)
        run.add(self.rank, [processor], **given)
        return run.run()


def test_a_stream_keeps_order_and_counts_idle_and_waiting_apart():
    device = Device()
    collective = device.later(9.0)
    device.queue(NodeKind.NOT_BEFORE, 2.0)
    device.queue(NodeKind.COMPUTE, 3.0)
    first = device.queue(NodeKind.EVENT)
    device.queue(NodeKind.WAIT, after=(collective,))
    second = device.queue(NodeKind.EVENT)
    device.spend(12.0)
    last = device.queue(NodeKind.EVENT)
    times = device.run()
    assert [times.end[node] for node in (first, second, last)] == [5.0, 9.0, 12.0]
    assert [times.idled[node] for node in (first, second, last)] == [(2.0, 0.0), (2.0, 4.0), (5.0, 4.0)]


def test_a_mark_between_work_is_when_the_stream_got_there_whatever_the_speed():
    device = Device()
    device.collective(device.later(1.5))
    marks = [device.queue(NodeKind.MARK)]
    for _ in range(4):
        device.queue(NodeKind.COMPUTE, 1.0)
        marks.append(device.queue(NodeKind.MARK))
    times = device.run(alike(2.0), transfer_s=2.0)
    assert [times.end[node] for node in marks] == pytest.approx([0.0, 1.0, 2.5, 4.0, 5.0])


def test_work_that_the_host_queues_late_is_not_done_with_that_before_it():
    device, busy, marks = Device(), [], []
    for spent_s in (0.0, 0.0, 3.0, 0.5):
        if spent_s:
            device.spend(spent_s)
        device.queue(NodeKind.COMPUTE, 1.0)
        marks.append(device.queue(NodeKind.MARK))
    times = device.run(on_busy=lambda now, moment_s: busy.append((now, moment_s)))
    assert [times.end[node] for node in marks] == [1.0, 2.0, 4.0, 5.0]
    assert busy == [(True, 0.0), (False, 2.0), (True, 3.0), (False, 4.0), (True, 4.0), (False, 5.0)]


def test_a_bar_that_still_holds_parts_the_work_around_it():
    device = Device()
    device.queue(NodeKind.COMPUTE, 1.0)
    device.queue(NodeKind.NOT_BEFORE, 2.0)
    device.queue(NodeKind.COMPUTE, 1.0)
    mark = device.queue(NodeKind.MARK)
    assert device.run().end[mark] == 3.0


def test_a_host_that_waits_goes_on_when_what_it_waits_for_has_ended_or_when_it_gets_there():
    device = Device()
    early, late = device.later(1.0), device.later(7.0)
    device.spend(3.0)
    waits = []
    for node in (early, late):
        waits.append(device.graph.add(NodeKind.WAIT, 0.0, 0, (node,)))
        device.rank.host.append(waits[-1])
    device.host = waits[-1]
    times = device.run()
    assert [times.end[node] for node in waits] == [3.0, 7.0]


def test_a_collective_waits_for_multiprocessors_only_where_its_rank_computes():
    device = Device()
    first = device.collective(device.later(0.25))
    second = device.collective(device.later(1.25, first))
    device.queue(NodeKind.COMPUTE, 1.0)
    device.queue(NodeKind.WAIT, after=(second,))
    times = device.run(late_s=0.5)
    assert [times.begin[node] for node in (first, second)] == [0.75, 2.0]


def test_a_collective_begins_on_the_wire_when_the_last_rank_has_arrived():
    env, graph = simpy.Environment(), StepGraph()
    run = GraphRun(env, graph, lambda collective: env.timeout(2.0), 1)
    launched = []
    for number, spent_s in enumerate((1.0, 4.0)):
        rank = RankGraph(number, one_thread=True, lanes=[[]])
        graph.ranks.append(rank)
        rank.host.append(graph.add(NodeKind.COMPUTE, spent_s))
        launched.append(graph.add(NodeKind.COLLECTIVE, 0.0, 0, (rank.host[-1],)))
        graph.collectives[launched[-1]] = one()
        rank.lanes[0].append(launched[-1])
        rank.last = graph.add(NodeKind.WAIT, 0.0, 0, (launched[-1],))
        rank.host.append(rank.last)
    run = GraphRun(env, graph, lambda collective: env.timeout(2.0), 1)
    for rank in graph.ranks:
        run.add(rank, [Processor(env, UNDISTURBED, lambda busy: None)])
    times = run.run()
    assert [times.begin[node] for node in launched] == [1.0, 4.0]
    assert [times.wire[node] for node in launched] == [4.0, 4.0]
    assert [times.end[node] for node in launched] == [6.0, 6.0]
