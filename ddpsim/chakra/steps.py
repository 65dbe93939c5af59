"""The step of one simulated rank as nodes of an execution trace: its computation, its messages, their order.

Start at `step_nodes`: `_Writer` goes through the rank's nodes of the step graph in program order, and `_Step` knows
which phase, parameter and message each is of. The duration of a computation is its work undisturbed, for a simulator
that reads the trace slows it down by its own rules; that of a collective is its simulated time. Waits and marks take no
time and become dependencies. Durations are whole microseconds, rounded so that the sum of each phase is right.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.chakra.schema import Attribute, CollectiveType, NodeType, Tensors, TraceNode
from ddpsim.common.operation import Operation
from ddpsim.simulation.graph import BUFFERS, BUFFERS_PART, Cause, IterationNodes, NodeKind, RankGraph, StepGraph
from ddpsim.simulation.job_run import JobRun
from ddpsim.simulation.linear import PER
from ddpsim.simulation.rank_config import RankConfiguration
from ddpsim.workload import Buffer

PARAMETERS, MODULE_BUFFERS = "parameters", "buffers"
"""Names of the metadata nodes that list them as outputs."""

FORWARD, BACKWARD, OPTIMIZER, INPUT, DDP = "forward", "backward", "optimizer", "input", "ddp"
"""Values of a compute node's attribute `phase`; `ddp` is work that training without DDP does not have."""

GROUP, OPERATION = "group", "op"
"""Attributes of a communicating node that `writing` replaces for each rank: the schedule's group, the operation."""

_COLLECTIVES = {
    Operation.ALLREDUCE: CollectiveType.ALL_REDUCE,
    Operation.REDUCE_SCATTER: CollectiveType.REDUCE_SCATTER,
    Operation.ALL_GATHER: CollectiveType.ALL_GATHER,
    Operation.BROADCAST: CollectiveType.BROADCAST,
    Operation.REDUCE: CollectiveType.REDUCE,
}
_PHASES = {Cause.INPUT: INPUT, Cause.FORWARD: FORWARD, Cause.BACKWARD: BACKWARD, Cause.OPTIMIZER: OPTIMIZER}
_NO_TIME = (NodeKind.MARK, NodeKind.EVENT, NodeKind.WAIT, NodeKind.RESUME)
_ROUNDING = 1e-9
"""Shares of forward that are no farther apart are one."""

Before = tuple[int, ...]
"""Ids of nodes that must have ended before another begins."""


def tensors_of(listed: Iterable[Parameter | Buffer]) -> Tensors:
    """Return names, shapes and types of tensors as JSON lists."""
    tensors = list(listed)
    names, shapes, types = ([getattr(each, part) for each in tensors] for part in ("name", "shape", "dtype"))
    return Tensors(json.dumps(names), json.dumps([list(shape) for shape in shapes]), json.dumps(types))


def step_nodes(run: JobRun, rank: RankGraph, setting: RankConfiguration) -> list[TraceNode]:
    """Return the nodes of a simulated rank in program order, of the iterations that count: those after warm-up."""
    counted = rank.iterations[run.extent.begin : run.extent.end]
    writer = _Writer(run, rank, setting)
    for iteration in counted:
        writer.write(iteration)
    return writer.nodes


@dataclass(slots=True)
class _Clock:
    """Whole microseconds of the work of one resource."""

    total_s: float = 0.0

    def advance_us(self, seconds: float) -> int:
        """Return what `seconds` more take, rounded so that sums are right."""
        before, self.total_s = self.total_s, self.total_s + seconds
        return round(self.total_s * 1e6) - round(before * 1e6)


@dataclass(slots=True)
class _Resource:
    """The state of one resource of a rank: host, device, copy engine or lane of messages."""

    before: Before = ()
    """Nodes that its next one comes after."""
    clocks: defaultdict[str, _Clock] = field(default_factory=lambda: defaultdict(_Clock))
    """Its work by phase, so that the sum of each is right."""


class _Writer:
    """Writes the nodes of one rank, iteration by iteration.

    Args:
        run: the simulated run.
        rank: the rank's part of its step graph.
        setting: the rank's workload, schedule and costs.
    """

    def __init__(self, run: JobRun, rank: RankGraph, setting: RankConfiguration) -> None:
        self.nodes: list[TraceNode] = []
        self._run, self._graph, self._rank, self._setting = run, run.graph, rank, setting
        self._zero_s = run.times.begin[rank.iterations[run.extent.begin].start]
        self._host, self._device, self._copies = _Resource(), _Resource(), _Resource()
        self._paced: Before = ()
        self._lanes = [_Resource() for _ in rank.lanes]
        # By node of the graph, the trace's nodes that end with it; of waits and marks, those they wait for.
        self._ends: dict[int, Before] = {}
        lists = {"host": rank.host, "compute": rank.compute, "copies": rank.copies, "delay": rank.delays}
        self._where = {node: name for name, nodes in lists.items() for node in nodes}
        self._where |= {node: "lane" for nodes in rank.lanes for node in nodes}
        self._index = 0
        self._id = 2  # behind the lists of parameters and buffers, and that of process groups

    def write(self, iteration: IterationNodes) -> None:
        """Write one iteration."""
        step = _Step.of(iteration, self._setting, self._graph)
        self._index, latest = iteration.index - self._run.extent.begin, FORWARD
        for node in range(iteration.start + 1, iteration.end + 1):
            if node in self._where:
                latest = self._write(node, step, latest)
            for parameter in step.gradients.get(node, ()):
                if parameter not in step.written:
                    self._gradient(parameter, node, 0.0, step)

    def _write(self, node: int, step: _Step, latest: str) -> str:
        """Write a node of the graph; return the phase of the rank's last computation, for launches behind it."""
        graph, kind, where = self._graph, self._graph.kind[node], self._where[node]
        if kind is NodeKind.COLLECTIVE:
            self._collective(node, step)
            return latest
        resource = {"host": self._host, "compute": self._device, "copies": self._copies}.get(where, _Resource())
        # A node comes after the one before on its resource, its launch, and what it waits for. One that takes no time
        # is not written: its own dependencies stand in for it (`_ends`).
        waits = (self._ends.get(each, ()) for each in (graph.queued[node], *graph.after[node]))
        resource.before = _sort_ids((*resource.before, *chain.from_iterable(waits)))
        self._ends[node] = resource.before
        if kind in _NO_TIME or (kind is NodeKind.NOT_BEFORE and graph.seconds[node] <= 0):
            if kind is NodeKind.RESUME:
                self._paced = resource.before
            return latest
        phase = step.phase(node, graph, latest, one_thread=self._rank.one_thread)
        if kind is NodeKind.NOT_BEFORE:
            self._write_launch_delay(node, step)
        elif kind in (NodeKind.LOAD, NodeKind.COPY):
            times = self._run.times
            made = _computation(INPUT, kind.name.lower())
            self._compute(node, made, times.end[node] - times.begin[node], resource)
        else:
            self._work(node, phase, resource, step)
        return phase if kind in (NodeKind.COMPUTE, NodeKind.PACED) and phase != DDP else latest

    def _work(self, node: int, phase: str, resource: _Resource, step: _Step) -> None:
        """Write work of the host or the device, DDP's share of it as a node of its own.

        Backward is cut at gradients, so that a reader can hang collectives on them; forward at the first use of each
        parameter, so that a gather before it can be hung on that.
        """
        graph = self._graph
        seconds = graph.seconds[node]
        ddp_s = seconds if phase == DDP else 0.0
        if phase != DDP and graph.kind[node] is NodeKind.DELAY:
            ddp_s = min(seconds, _constant_s(graph, node, self._setting))
        if ddp_s > 0:
            self._compute(node, _computation(DDP), ddp_s, resource)
        if phase == DDP or seconds - ddp_s <= _ROUNDING * seconds:
            return
        own_s = seconds - ddp_s
        paced = graph.kind[node] is NodeKind.PACED
        host = resource is self._host and not self._rank.one_thread
        parameter = step.parameter(node) if phase == BACKWARD else None
        if parameter is not None and not host and parameter not in step.written:
            self._gradient(parameter, node, own_s, step)
        elif phase == FORWARD:
            for part_s, needed in step.parts(own_s, host=host):
                self._compute(node, _computation(FORWARD, inputs=tensors_of(needed)), part_s, resource, paced=paced)
        else:
            name = BACKWARD if parameter is None else f"{BACKWARD} {step.parameters[parameter].name}"
            made = _computation(phase, name if phase == BACKWARD else phase)
            self._compute(node, made, own_s, resource, paced=paced)

    def _gradient(self, parameter: int, node: int, seconds: float, step: _Step) -> None:
        """Write the node whose output is a gradient."""
        step.written.add(parameter)
        resource = self._host if self._rank.one_thread else self._device
        of = step.parameters[parameter]
        made = _computation(BACKWARD, f"{BACKWARD} {of.name}", outputs=tensors_of([of]))
        self._compute(node, made, seconds, resource, paced=self._graph.kind[node] is NodeKind.PACED)

    def _write_launch_delay(self, node: int, step: _Step) -> None:
        """Write for how long the device idled for want of a launch."""
        times, lag_s = self._run.times, self._graph.seconds[node]
        idled_s = min(lag_s, max(0.0, times.end[node] - times.begin[node]))
        parameter = step.parameter(node)
        name = "launch" if parameter is None else f"launch {step.parameters[parameter].name}"
        self._compute(node, _computation(BACKWARD, name), idled_s, self._device, lag_us=lag_s * 1e6)

    def _compute(
        self,
        node: int,
        made: TraceNode,
        seconds: float,
        resource: _Resource,
        *,
        paced: bool = False,
        lag_us: float | None = None,
    ) -> None:
        """Write what a node of the graph computes, behind what its resource did before."""
        phase = str(made.attributes["phase"])
        lag: dict[str, Attribute] = {} if lag_us is None else {"lag_us": lag_us}
        on_host = resource is self._host and not paced
        made.attributes = {"is_cpu_op": on_host, **made.attributes, "iteration": self._index, **lag}
        made.control = _sort_ids((*resource.before, *self._paced) if paced else resource.before)
        made.start_us = self._since_us(node)
        made.duration_us = resource.clocks[phase if lag_us is None else "launch"].advance_us(seconds)
        resource.before = self._ends[node] = (self._add(made),)
        if paced:
            self._paced = resource.before

    def _collective(self, node: int, step: _Step) -> None:
        """Write a collective: behind the one before on its lane and its launch, and behind the data that it sends.

        Its group is the schedule's name and its size the whole message: `writing` makes them each rank's.
        """
        collective, times = self._graph.collectives[node], self._run.times
        lane = self._lanes[collective.lane]
        queued = self._ends.get(self._graph.queued[node], ())
        data = {each for before in self._graph.after[node] for each in self._ends.get(before, ())}
        group, _ = self._setting.scheduled(0).lanes[collective.lane]
        operation = Operation.BROADCAST if collective.operation == BUFFERS else Operation(collective.operation)
        ended_s = times.end[node]
        lasted_s = max(0.0, ended_s - times.begin[node]) if ended_s != float("inf") else 0.0
        made = TraceNode(
            0, step.messages.get(node, str(collective.operation)), NodeType.COMM_COLL,
            control=_sort_ids((*queued, *lane.before)), data=_sort_ids(data), start_us=self._since_us(node),
            duration_us=round(lasted_s * 1e6),
            attributes={"is_cpu_op": False, "iteration": self._index, OPERATION: str(operation),
                        "comm_size": collective.size_bytes, GROUP: group},
            inputs=step.sent.get(node, Tensors()),
        )  # fmt: skip
        if operation in _COLLECTIVES:
            made.attributes = {**made.attributes, "comm_type": int(_COLLECTIVES[operation])}
        else:
            made.type = NodeType.COMM_RECV
        self._ends[node] = lane.before = (self._add(made),)

    def _add(self, node: TraceNode) -> int:
        self._id += 1
        node.id = self._id
        self.nodes.append(node)
        return self._id

    def _since_us(self, node: int) -> int:
        begun_s = self._run.times.begin[node]
        return 0 if begun_s == float("inf") else max(0, round((begun_s - self._zero_s) * 1e6))


@dataclass(slots=True)
class _Step:
    """Phases, gradients and messages of the nodes of one iteration.

    Attributes:
        ends: the last nodes of forward and of backward.
        gradients: by the node at whose end they are ready, the parameters.
        ready: those nodes, ascending, with the parameter of each.
        messages, sent: name and tensors of a message, by its first collective.
        uses: shares of forward on host and device after which each parameter is needed; None where that is not known.
        written: parameters whose gradient has a node.
        over_s: how much of forward on host and device has been written.
    """

    parameters: Sequence[Parameter]
    ends: tuple[int, int]
    gradients: dict[int, list[int]]
    ready: list[tuple[int, int]]
    messages: dict[int, str]
    sent: dict[int, Tensors]
    forward_s: tuple[float, float]
    uses: tuple[Sequence[float], Sequence[float]] | None
    written: set[int] = field(default_factory=set)
    over_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @classmethod
    def of(cls, nodes: IterationNodes, setting: RankConfiguration, graph: StepGraph) -> _Step:
        workload, pace = setting.workload, setting.pace(nodes.index)
        gradients: dict[int, list[int]] = {}
        for parameter, _, ready in nodes.gradients:
            gradients.setdefault(ready, []).append(parameter)
        shares = workload.forward_shares() if workload.forward_use_known else None
        buffers = (
            node
            for node in range(nodes.start + 1, nodes.end + 1)
            if node in graph.collectives and graph.collectives[node].operation == BUFFERS
        )
        messages, sent = dict.fromkeys(buffers, "broadcast of buffers"), {}
        for each in nodes.messages:
            messages[each.first] = f"{each.planned.operation} {each.planned.number}"
            sent[each.first] = tensors_of(workload.all_parameters[index] for index in each.planned.parameters)
        return cls(
            parameters=workload.all_parameters,
            ends=(max(last for _, last in nodes.forward), nodes.backward[-1][1]),
            gradients=gradients,
            ready=sorted((ready, parameter) for parameter, _, ready in nodes.gradients),
            messages=messages,
            sent=sent,
            forward_s=(pace.forward_host, pace.forward_host if workload.one_clock else pace.forward_work),
            uses=None if shares is None else (shares.host_s.tolist(), shares.device_s.tolist()),
        )

    def phase(self, node: int, graph: StepGraph, latest: str, *, one_thread: bool) -> str:
        """Return the phase of a node's work; a launch of the host is of the phase that it launches.

        Which that is follows from program order: the host's nodes stand between the ends of forward and backward.
        """
        cause = graph.cause[node]
        if cause is not Cause.HOST or one_thread:
            return _PHASES.get(cause, DDP)
        if node > self.ends[1]:
            return OPTIMIZER
        return BACKWARD if node > self.ends[0] else latest

    def parameter(self, node: int) -> int | None:
        """Return the parameter whose gradient the work of a node is for, the next to be ready; None behind the last."""
        place = bisect_left(self.ready, (node, -1))
        return self.ready[place][1] if place < len(self.ready) else None

    def parts(self, seconds: float, *, host: bool) -> list[tuple[float, list[Parameter]]]:
        """Return the next `seconds` of forward, cut where it first needs parameters, each part with its parameters."""
        clock = 0 if host else 1
        whole_s, begun_s = self.forward_s[clock], self.over_s[clock]
        self.over_s[clock] = begun_s + seconds
        if self.uses is None or whole_s <= 0:
            return [(seconds, [])]
        begin, end = begun_s / whole_s, (begun_s + seconds) / whole_s
        last = end >= 1 - _ROUNDING  # takes what is needed at the very end, or behind it by rounding
        needed: dict[float, list[Parameter]] = {begin: []}
        for share, parameter in zip(self.uses[clock], self.parameters, strict=True):
            inside = begin - _ROUNDING <= share and (share < end - _ROUNDING or last)
            if np.isnan(share) or not inside:
                continue
            needed.setdefault(begin if share <= begin + _ROUNDING else min(share, end), []).append(parameter)
        cuts = sorted(needed)
        return [((after - cut) * whole_s, needed[cut]) for cut, after in pairwise([*cuts, max(end, cuts[-1])])]


def _constant_s(graph: StepGraph, node: int, setting: RankConfiguration) -> float:
    """Return the seconds of a node that come from DDP's cost constants, by its terms."""
    total_s = 0.0
    for term, times in graph.terms.get(node, ()):
        name = term.removeprefix(BUFFERS_PART)
        value = getattr(setting.costs, name.removeprefix(PER), None)
        if value is not None:
            total_s += times * (1 / float(value) if name.startswith(PER) else float(value))
    return total_s


def _sort_ids(ids: Iterable[int]) -> Before:
    return tuple(sorted(set(ids)))


def _computation(
    phase: str, name: str | None = None, inputs: Tensors | None = None, outputs: Tensors | None = None
) -> TraceNode:
    """Return a computation without id, dependencies, iteration and times, which `_compute` sets."""
    inputs, outputs = inputs or Tensors(), outputs or Tensors()
    return TraceNode(0, name or phase, NodeType.COMP, attributes={"phase": phase}, inputs=inputs, outputs=outputs)
