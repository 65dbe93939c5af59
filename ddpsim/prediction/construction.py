"""What DDP's constructor sends before the first iteration: a check that ranks have one model, and rank 0's state.

Source: torch 2.13, `torch/distributed/utils.py` (`_verify_param_shape_across_processes`, `_sync_module_states`) and
c10d's `broadcast_coalesced`: the number of parameters is gathered, their sizes and strides are broadcast, then
parameters and buffers, coalesced by dtype in pieces of 250 MiB, two in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import simpy

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import assign_buckets, in_registration_order
from ddpsim.common.operation import Operation
from ddpsim.simulation.contention import UNDISTURBED, Processor
from ddpsim.simulation.graph import NodeKind, StepGraph
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.resolve import ResolvedJob
from ddpsim.simulation.run import GraphRun
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.workload import Workload

PIECE_BYTES = 250 << 20
"""Bytes of a coalesced piece: `_broadcast_bucket_size` of torch's DDP."""

IN_FLIGHT = 2
"""Pieces on their way at once: `max_in_flight` of c10d's `broadcast_coalesced`."""

NUMBER_BYTES = 8
"""Counts, sizes and strides travel as int64."""


@dataclass(frozen=True, slots=True)
class ConstructionMessage:
    """A message of the constructor.

    Attributes:
        operation: of the process group.
        size_bytes: as nccl-tests counts.
        tensors: of the state that it carries; 0 of the check.
        finished_s: when all ranks had it, from the call of the constructor.
    """

    operation: Operation
    size_bytes: int
    tensors: int
    finished_s: float = 0.0

    def document(self) -> dict[str, object]:
        """Return the message as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Construction:
    """What the constructor takes of the slowest rank, from the moment at which all call it.

    Attributes:
        seconds: until rank 0's state is everybody's.
        messages: in order.
    """

    seconds: float
    messages: tuple[ConstructionMessage, ...]

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(message.size_bytes for message in self.messages if message.tensors)


def messages_of(workload: Workload, world_size: int) -> Iterator[ConstructionMessage]:
    """Yield what the constructor sends, in order."""
    yield ConstructionMessage(Operation.ALL_GATHER, NUMBER_BYTES * world_size, 0)
    shapes = sum(2 * len(parameter.shape) for parameter in workload.parameters)
    yield ConstructionMessage(Operation.BROADCAST, NUMBER_BYTES * shapes, 0)
    buffers = [Parameter(buffer.name, buffer.shape, buffer.dtype) for buffer in workload.buffers]
    registered = in_registration_order(workload.all_parameters)
    state = [Parameter(each.name, each.shape, each.dtype) for _, each in registered] + buffers
    for piece in assign_buckets(state, [PIECE_BYTES]):
        yield ConstructionMessage(Operation.BROADCAST, piece.size_bytes, len(piece.parameters))


def construct(job: ResolvedJob) -> Construction:
    """Return what the constructor takes of a job: every rank calls it at once, and nothing else is on the links."""
    planned = list(messages_of(job.workload, job.job.placement.world_size))
    env, graph = simpy.Environment(), StepGraph()
    ends: list[list[int]] = []
    for draw, setting in zip(job.draws, job.settings, strict=True):
        to = RankBuilder(graph, setting.execution, setting.costs, setting.enter_s, draw.rank, 1)
        ends.append(_Constructor(to, setting).build(planned))
    shared = job.job.communication(env, job.settings[0].scheduled(0))
    run = GraphRun(env, graph, shared.transfer, shared.collectives.streams_per_group)
    for rank in graph.ranks:
        run.add(rank, [Processor(env, UNDISTURBED, lambda busy: None)])
    times = run.run()
    done = [
        replace(message, finished_s=max(times.end[of_rank[place]] for of_rank in ends))
        for place, message in enumerate(planned)
    ]
    return Construction(max(times.end[rank.last] for rank in graph.ranks), tuple(done))


class _Constructor:
    """Writes the constructor of one rank; returns its collectives."""

    def __init__(self, to: RankBuilder, setting: RankConfiguration) -> None:
        self._to, self._costs = to, setting.costs

    def build(self, planned: list[ConstructionMessage]) -> list[int]:
        """Write all messages: a check is read on the host before the next, of the state two are in flight."""
        sent: list[int] = []
        flying: deque[tuple[int, ConstructionMessage]] = deque()
        for message in planned:
            if len(flying) == IN_FLIGHT:
                self._take_in(*flying.popleft())
            sent.append(self._launch(message))
            if message.tensors:
                flying.append((sent[-1], message))
            else:
                self._to.on_host(NodeKind.WAIT, after=(sent[-1],))
        while flying:
            self._take_in(*flying.popleft())
        self._to.rank.last = self._to.event()
        return sent

    def _launch(self, message: ConstructionMessage) -> int:
        to, costs = self._to, self._costs
        copies_s = costs.copies_s(message.tensors, message.size_bytes) if message.tensors else 0.0
        if to.one_thread:
            to.serve(copies_s + costs.launch_s)
        else:
            to.copies(copies_s)
            to.host(costs.launch_s)
        return to.collective(message.size_bytes, (to.event(),), message.operation, 0)

    def _take_in(self, node: int, message: ConstructionMessage) -> None:
        to, copies_s = self._to, self._costs.copies_s(message.tensors, message.size_bytes)
        if to.one_thread:
            to.on_host(NodeKind.WAIT, after=(node,))
            to.serve(copies_s)
        else:
            to.add_on_stream(NodeKind.WAIT, after=(node,))
            to.copies(copies_s)
