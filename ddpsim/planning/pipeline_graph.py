"""The step of a pipeline as a graph: each rank's forwards and backwards in its order, what stages send, and sums.

One copy of the model is simulated, whose ranks stand for those of their place in all copies. A stage computes when the
one before it has sent, or the one behind it its gradient; what stages send shares the links. Copies sum gradients after
all that a rank computes, or bucket by bucket under the last backward of a stage, while other stages still compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy

from ddpsim.collectives.transport import Connection
from ddpsim.network.fairness import Demand
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.schedules.pipeline import StageWork, find_before
from ddpsim.simulation.contention import UNDISTURBED, Processor
from ddpsim.simulation.graph import ORIGIN, Collective, NodeKind, RankGraph, StepGraph
from ddpsim.simulation.run import GraphRun


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """Gradients of a stage that copies sum together.

    Attributes:
        ready_s: when the last of them is there, from the start of the stage's last backward.
        size_bytes: of all of them.
    """

    ready_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """What the ranks of one copy do in a step.

    Attributes:
        works: of each rank, in order.
        forward_s, backward_s: what one micro-batch takes on each stage.
        boundary_bytes: of the activations that a stage sends the next, and of their gradient.
        buckets: by stage, in the order in which they are ready; none where there is one copy.
        under_backward: whether a bucket is summed when it is ready; else all of a rank's together, after its last work.
    """

    works: Sequence[Sequence[StageWork]]
    forward_s: Sequence[float]
    backward_s: Sequence[float]
    boundary_bytes: int
    buckets: Sequence[Sequence[GradientBucket]] = ()
    under_backward: bool = False

    @property
    def stages(self) -> int:
        """Stages of the whole model."""
        return len(self.forward_s)


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """When each rank has done all its work, and when its gradients are summed."""

    computed_s: tuple[float, ...]
    summed_s: tuple[float, ...]


class PipelineBuilder:
    """Writes the ranks of one copy into a graph.

    Args:
        graph: of all ranks.
        plan: what they do.
    """

    def __init__(self, graph: StepGraph, plan: PipelinePlan) -> None:
        self._graph, self._plan = graph, plan
        self._lanes = _Lanes(plan.stages)
        self._ended: dict[tuple[str, int, int], int] = {}
        self._sent: dict[tuple[str, int, int], int] = {}
        self._last = {(kind, stage): number for work in plan.works for kind, stage, number in work}
        graph.ranks.extend(
            RankGraph(rank, True, [[] for _ in range(self._lanes.count)]) for rank in range(len(plan.works))
        )
        self.computed = [ORIGIN] * len(plan.works)

    def build(self) -> None:
        """Write all that the ranks compute and send, then what they wait for at the end."""
        places, moved = [0] * len(self._plan.works), True
        while moved:
            moved = False
            for rank, work in enumerate(self._plan.works):
                while places[rank] < len(work) and self._write(rank, *work[places[rank]]):
                    places[rank] += 1
                    moved = True
        for number, graph in enumerate(self._graph.ranks):
            self.computed[number] = graph.host[-1]
            held = [k for k in range(self._plan.stages) if self._plan.buckets and k % len(self._plan.works) == number]
            if held and not self._plan.under_backward:
                size = sum(bucket.size_bytes for stage in held for bucket in self._plan.buckets[stage])
                self._send(graph, self._lanes.gradients, Operation.ALLREDUCE, size)
            graph.last = self._add(graph, NodeKind.WAIT, after=tuple(graph.lanes[self._lanes.gradients]))

    def _write(self, number: int, kind: str, stage: int, micro_batch: int) -> bool:
        """Write a forward or a backward, where what it waits for has been written."""
        plan, rank = self._plan, self._graph.ranks[number]
        before = find_before(kind, micro_batch, stage, plan.stages - 1)
        if before is not None:
            found = (self._ended if before[1] == stage else self._sent).get(before)
            if found is None:
                return False
            if before[1] != stage:
                self._add(rank, NodeKind.WAIT, after=(found,))
        forward = kind == "forward"
        if forward:
            self._add(rank, NodeKind.COMPUTE, plan.forward_s[stage])
        else:
            self._backward(rank, stage, last=self._last["backward", stage] == micro_batch)
        here = (kind, stage, micro_batch)
        self._ended[here] = rank.host[-1]
        if forward and stage + 1 < plan.stages:
            self._sent[here] = self._send(rank, self._lanes.forward(stage), Operation.SENDRECV, plan.boundary_bytes)
        elif not forward and stage > 0:
            self._sent[here] = self._send(rank, self._lanes.backward(stage), Operation.SENDRECV, plan.boundary_bytes)
        return True

    def _backward(self, rank: RankGraph, stage: int, *, last: bool) -> None:
        plan, done_s = self._plan, 0.0
        for bucket in plan.buckets[stage] if last and plan.buckets and plan.under_backward else ():
            self._add(rank, NodeKind.COMPUTE, bucket.ready_s - done_s)
            self._send(rank, self._lanes.gradients, Operation.ALLREDUCE, bucket.size_bytes)
            done_s = bucket.ready_s
        self._add(rank, NodeKind.COMPUTE, plan.backward_s[stage] - done_s)

    def _add(self, rank: RankGraph, kind: NodeKind, seconds: float = 0.0, after: tuple[int, ...] = ()) -> int:
        node = self._graph.add(kind, seconds, ORIGIN, after)
        rank.host.append(node)
        return node

    def _send(self, rank: RankGraph, lane: int, operation: Operation, size_bytes: int) -> int:
        nodes = rank.lanes[lane]
        node = self._graph.add(NodeKind.COLLECTIVE, 0.0, ORIGIN, (rank.host[-1],))
        self._graph.collectives[node] = Collective(size_bytes, operation, lane, len(nodes))
        nodes.append(node)
        return node


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Numbers of the lanes: from each stage to the next, back, and of gradients."""

    stages: int

    @property
    def gradients(self) -> int:
        return 2 * (self.stages - 1)

    @property
    def count(self) -> int:
        return self.gradients + 1

    def forward(self, stage: int) -> int:
        return stage

    def backward(self, stage: int) -> int:
        return self.stages - 1 + stage - 1


@dataclass(slots=True)
class PipelineLinks:
    """What carries the messages of a copy.

    Attributes:
        network: that stages send on.
        ways: from each stage to the next, and back.
        sum_s: what summing so many bytes of one rank over copies takes, while the ranks of all other places sum as
            many: sums of different ranks do not slow each other beyond that.
        streams: messages of a lane under way at once.
    """

    network: Network
    ways: Sequence[tuple[Connection, Connection]]
    sum_s: Callable[[int], float]
    streams: int = 1
    _lanes: _Lanes = field(init=False)

    def __post_init__(self) -> None:
        self._lanes = _Lanes(len(self.ways) + 1)

    def attend(self, collective: Collective) -> simpy.Event:
        """Start a message of one rank; return the event of its end."""
        lane, size_bytes = collective.lane, collective.size_bytes
        if lane == self._lanes.gradients:
            return self.network.env.timeout(self.sum_s(size_bytes))
        back, stage = divmod(lane, len(self.ways))
        way = self.ways[stage][back]
        return self.network.transfer(Demand(way.latency_s, size_bytes, dict(way.loads)))


def simulate_pipeline(plan: PipelinePlan, links: Callable[[simpy.Environment], PipelineLinks]) -> PipelineTimes:
    """Return when the ranks of a copy have computed and summed.

    Args:
        plan: what they do.
        links: makes what carries their messages in a simulation.
    """
    env, graph = simpy.Environment(), StepGraph()
    builder = PipelineBuilder(graph, plan)
    builder.build()
    carried = links(env)
    run = GraphRun(env, graph, None, carried.streams)
    for rank in graph.ranks:
        run.add(rank, Processor(env, UNDISTURBED, lambda busy: None), channel=carried)
    end = run.run().end
    return PipelineTimes(tuple(end[node] for node in builder.computed), tuple(end[rank.last] for rank in graph.ranks))
