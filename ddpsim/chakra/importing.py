"""A workload from a Chakra execution trace of one rank: its computation, with communication left out.

Start at `import_trace`. In a trace of `ddpsim predict --chakra` each compute node names its phase and the gradient that
it completes: `_workload` sums phases and replays gradients, and gives back the workload that was simulated, at the
rank's pace. Any other trace has compute nodes and collectives alone. `annotate_nodes` gives it the same attributes
first: each allreduce or reduce-scatter is one gradient of its bytes, ready when the compute node before it ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from math import isfinite
from pathlib import Path

import numpy as np

from ddpsim.chakra.schema import Attribute, CollectiveType, NodeType, Tensors, TraceNode, decode
from ddpsim.chakra.steps import BACKWARD, FORWARD, MODULE_BUFFERS, OPTIMIZER, PARAMETERS
from ddpsim.common.errors import TraceError, shorten
from ddpsim.common.files import display_name, read_bytes
from ddpsim.common.strict import list_mappings
from ddpsim.trace.records import CollectiveTimes
from ddpsim.workload import Workload
from ddpsim.workload.files import workload_from
from ddpsim.workload.profile import ForwardUse, median_use
from ddpsim.workload.times import Seconds, write_row, write_table

_REMEDY = "give a Chakra execution trace of one rank, NAME.RANK.et"
_TIMED = "timed "
"""How the label of a device begins whose layers sleep at its pace on a CPU: host and device are one clock."""
_UNKNOWN = "unknown"
"""Device of a trace that does not name its own."""


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace as a workload, and the messages that the workload leaves out."""

    workload: Workload
    collectives: tuple[CollectiveTimes, ...]
    """Of all iterations, in the order of the file; `operation` is as Chakra names it, or `SEND` and `RECV`;
    `size_bytes` is what a rank puts in."""
    notes: tuple[str, ...]
    """What was assumed."""

    def rows(self) -> list[dict[str, object]]:
        """Return the collectives as JSON objects, with their traced durations; 0 where the trace has none."""
        keys = ("name", "operation", "size_bytes", "group", "ranks")
        return [
            {name: getattr(each, name) for name in keys} | {"duration_s": round(each.finished_s - each.started_s, 6)}
            for each in self.collectives
        ]


def import_trace(path: Path) -> ImportedTrace:
    """Return the workload in a Chakra execution trace.

    Raises:
        InputError: protobuf is not installed.
        TraceError: a file that is none, or has no gradients; the node is named.
    """
    place = display_name(path)
    data = read_bytes(path, TraceError, _REMEDY)
    try:
        header, nodes = decode(data, place)
    except TraceError:
        if data.lstrip()[:1] == b"{":
            what = "JSON: of Chakra's traces only their protobuf is read"
            raise TraceError(what, place=place, remedy=f"{_REMEDY}, made by chakra_converter") from None
        raise
    notes: tuple[str, ...] = ()
    collectives = tuple(_collectives(nodes, place))  # before `annotate_nodes`, which leaves them out
    if not any("phase" in node.attributes for node in nodes):
        nodes, notes = annotate_nodes(nodes, place)
        header = {"workload": path.name.removesuffix(".et"), **header}
    return ImportedTrace(_workload(header, nodes, place), collectives, notes)


def _collectives(nodes: Sequence[TraceNode], place: str) -> Iterable[CollectiveTimes]:
    sizes = _group_sizes(nodes, place)
    sent = [node for node in nodes if node.communicates]
    first_us = min((node.start_us for node in sent), default=0)
    for index, node in enumerate(sent):
        group = str(node.attributes.get("pg_name", ""))
        operation = NodeType(node.type).name.removeprefix("COMM_")
        if node.type == NodeType.COMM_COLL:
            number = _parse_whole(node, "comm_type", place)
            known = number in [int(each) for each in CollectiveType]
            operation = CollectiveType(number).name if known else f"collective {number}"
        start_s = (node.start_us - first_us) / 1e6
        yield CollectiveTimes(
            index=index,
            name=node.name,
            operation=operation,
            size_bytes=_parse_whole(node, "comm_size", place),
            group=group,
            ranks=sizes.get(group),
            ready_s=start_s,
            launched_s=start_s,
            started_s=start_s,
            finished_s=start_s + _s(node),
        )


def _group_sizes(nodes: Sequence[TraceNode], place: str) -> dict[str, int]:
    """Return the ranks of each process group that the trace lists, as torch's traces do: a list of one JSON text."""
    for node in nodes:
        if node.type != NodeType.METADATA or "process_group" not in node.name or len(node.inputs.values) < 4:
            continue
        listed = _json(node.inputs.values[2:-2], _place(node, place))
        return {
            str(each.get("pg_name")): len(ranks)
            for each in list_mappings(listed)
            if isinstance(ranks := each.get("ranks", []), list)
        }
    return {}


def _workload(header: Mapping[str, Attribute], nodes: Sequence[TraceNode], place: str) -> Workload:
    """Return the workload of annotated nodes, by way of a workload file's document, whose checks it passes.

    Raises:
        TraceError: no gradients, or nodes that contradict each other.
    """
    parameters = _tensors_of(nodes, PARAMETERS, place)
    names = [str(each["name"]) for each in parameters]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise TraceError(f"has two parameters {shorten(twice, 60)!r}", place=place, remedy=_REMEDY)
    by_iteration: dict[int, list[TraceNode]] = {}
    for node in nodes:
        if node.type == NodeType.COMP and "phase" in node.attributes:
            by_iteration.setdefault(_parse_whole(node, "iteration", place), []).append(node)
    if not (parameters and by_iteration):
        remedy = "give a trace of training, whose gradients are reduced"
        raise TraceError("has no gradients", place=place, remedy=remedy)
    frozen = _json(str(header.get("frozen", "[]")), f"{place}: frozen")
    used = [*names, *(str(each.get("name")) for each in list_mappings(frozen))]
    device = str(header.get("device", _UNKNOWN))
    one_clock = device == "cpu" or device.startswith(_TIMED)
    steps = [_Step.of(mine, names, used, place, one_clock=one_clock) for _, mine in sorted(by_iteration.items())]
    # A workload has an optimizer's time in every iteration: micro-batches without one take that of the first with one.
    updates = [each.seconds[OPTIMIZER] for each in steps if any(each.seconds[OPTIMIZER])]
    for each in steps:
        if updates and not any(each.seconds[OPTIMIZER]):
            each.seconds[OPTIMIZER] = updates[0]
    # Iterations that differ by rounding alone are one: simulated again, they would be replayed as jitter.
    if all(each.matches(steps[0]) for each in steps):
        steps = steps[:1]

    def listed(name: str) -> dict[str, list[float]]:
        return {f"{clock}_s": [each.seconds[name][n] for each in steps] for n, clock in enumerate(("host", "device"))}

    uses = [each.use for each in steps if each.use is not None]
    use = median_use(uses) if uses else None
    synchronises = header.get("synchronises", "[]")
    document = {
        "schema": "ddpsim.workload/1",
        "name": header.get("workload", place),
        "device": device,
        "precision": "fp32",
        "batch_size": 1,
        "threads": 1 if device == "cpu" else None,
        "estimated": False,
        **{key: header[key] for key in _COPIED if key in header},
        **({} if "optimizer" not in header else {"optimizer_kind": header["optimizer"]}),
        "parameters": [{**each, "device": "cpu"} for each in parameters],
        "frozen": frozen,
        "buffers": _tensors_of(nodes, MODULE_BUFFERS, place),
        **{phase: listed(phase) for phase in (FORWARD, BACKWARD, OPTIMIZER)},
        "gradient_hook_s": write_table(np.stack([each.hooks for each in steps])),
        "gradient_ready_s": write_table(np.stack([each.ready for each in steps])),
        "forward_use_s": None if use is None else {"host": write_row(use.host_s), "device": write_row(use.device_s)},
        "synchronises": _json(str(synchronises), f"{place}: synchronises"),
        "provenance": {"source": f"Chakra execution trace {place}"},
    }
    return workload_from(document, place)


_COPIED = (
    "precision", "batch_size", "threads", "estimated", "arithmetic_share", "ranks", "autocast_dtype", "sequence_length",
)  # fmt: skip
"""Attributes of the header that have the name and value of a workload file's key."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The compute nodes of one iteration.

    Attributes:
        seconds: of each phase, on the host and on the device.
        hooks, ready: when the host has launched each parameter's gradient and when it is complete, seconds from the
            start of backward; NaN without a gradient.
        use: when forward first needs each parameter; None where no node names one.
    """

    seconds: dict[str, tuple[float, float]]
    hooks: Seconds
    ready: Seconds
    use: ForwardUse | None

    @classmethod
    def of(
        cls, nodes: Sequence[TraceNode], names: Sequence[str], used: Sequence[str], place: str, *, one_clock: bool
    ) -> _Step:
        index, uses = ({name: number for number, name in enumerate(each)} for each in (names, used))
        seconds = {}
        for phase in (FORWARD, BACKWARD, OPTIMIZER):
            # A node with `lag_us` is the device idling for a launch: no work, and recomputed from the host's times.
            works = [n for n in nodes if n.attributes["phase"] == phase and "lag_us" not in n.attributes]
            host_s = sum(_s(node) for node in works if node.attributes.get("is_cpu_op"))
            device_s = sum(_s(node) for node in works if not node.attributes.get("is_cpu_op"))
            seconds[phase] = (host_s + device_s, host_s + device_s) if one_clock else (host_s, device_s)
        hooks, ready = _gradients(nodes, index, place, one_clock=one_clock)
        return cls(seconds, hooks, ready, _forward_use(nodes, uses, place, one_clock=one_clock))

    def matches(self, other: _Step) -> bool:
        """Whether both are one step up to rounding to microseconds, which sums of a phase may carry twice."""
        mine, theirs = ([*each.seconds.values(), *each.hooks, *each.ready] for each in (self, other))
        apart = [np.abs(np.subtract(one, two)) for one, two in zip(mine, theirs, strict=True)]
        return all(bool(np.all(np.isnan(each) | (each <= 2.5e-6))) for each in apart)


def _gradients(
    nodes: Sequence[TraceNode], index: Mapping[str, int], place: str, *, one_clock: bool
) -> tuple[Seconds, Seconds]:
    """Return when the host has launched each gradient and when it is complete, without communication.

    The inverse of `steps`: nodes before a gradient's own, named `backward NAME` or `launch NAME`, add up to its work on
    host and device and its launch lag; the node with the gradient as output closes it. Replayed in the order of these:
    a gradient is complete when the device has done its work, and no sooner than the host's launch and the lag allow.
    """
    order: list[int] = []
    host, work, lag = (dict.fromkeys(index.values(), 0.0) for _ in range(3))
    for node in nodes:
        if node.attributes["phase"] != BACKWARD:
            continue
        outputs = _names(node.outputs, node, place)
        _, _, name = node.name.partition(" ")
        number = index.get(outputs[0] if outputs else name)
        if number is None:
            continue
        if outputs:
            order.append(number)
        if "lag_us" in node.attributes:
            lag[number] = _parse_number(node, "lag_us", place) / 1e6
        elif one_clock or not node.attributes.get("is_cpu_op"):
            work[number] += _s(node)
        else:
            host[number] += _s(node)
    hooks, ready = np.full(len(index), np.nan), np.full(len(index), np.nan)
    launched_s = complete_s = 0.0
    for number in order:
        if one_clock:
            complete_s = launched_s = launched_s + work[number]
        else:
            launched_s += host[number]
            complete_s += work[number]
            # Without a lag the device was busy when the launch came: the launch decides nothing.
            if lag[number] > 0:
                complete_s = max(complete_s, launched_s + lag[number])
        hooks[number], ready[number] = launched_s, complete_s
    return hooks, ready


def _forward_use(
    nodes: Sequence[TraceNode], index: Mapping[str, int], place: str, *, one_clock: bool
) -> ForwardUse | None:
    """Return when forward first needs each parameter, by the inputs of its nodes."""
    uses = np.full((2, len(index)), np.nan)
    passed_s = [0.0, 0.0]
    for node in nodes:
        if node.attributes["phase"] != FORWARD:
            continue
        clock = 0 if node.attributes.get("is_cpu_op") or one_clock else 1
        for name in _names(node.inputs, node, place):
            if name in index:
                uses[clock, index[name]] = passed_s[clock]
        passed_s[clock] += _s(node)
    if one_clock:
        uses[1] = uses[0]
    known = ~np.isnan(uses)
    if not known.any():
        return None
    # A part that takes no time has no node, and its parameter no use on that clock: it is needed at the start.
    for clock in (0, 1):
        uses[clock, known[1 - clock] & ~known[clock]] = 0.0
    return ForwardUse(uses[0], uses[1])


def _s(node: TraceNode) -> float:
    return node.duration_us / 1e6


def _tensors_of(nodes: Sequence[TraceNode], name: str, place: str) -> list[dict[str, object]]:
    """Return name, shape and type of the tensors that a metadata node lists, as a workload's file has them."""
    for node in nodes:
        if node.type == NodeType.METADATA and node.name == name:
            columns = [_json(text, _place(node, place)) for text in astuple(node.outputs)]
            names, shapes, types = (each if isinstance(each, list) else [] for each in columns)
            if not len(names) == len(shapes) == len(types):
                what = f"{len(names)} names, {len(shapes)} shapes and {len(types)} types"
                raise TraceError(what, place=_place(node, place), remedy=_REMEDY)
            rows = zip(names, shapes, types, strict=True)
            return [{"name": each, "shape": shape, "dtype": dtype} for each, shape, dtype in rows]
    return []


def _names(tensors: Tensors, node: TraceNode, place: str) -> list[str]:
    found = _json(tensors.values, _place(node, place)) if tensors.values else []
    return [str(each) for each in found] if isinstance(found, list) else []


def _place(node: TraceNode, place: str) -> str:
    return f"{place}: node {node.id}"


def _json(text: str, place: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"is no JSON: {error}", place=place, remedy=_REMEDY) from error


def _parse_whole(node: TraceNode, name: str, place: str) -> int:
    value = node.attributes.get(name)
    if not isinstance(value, int):
        what = f"has no whole number `{name}`" if value is None else f"`{name}` is {shorten(repr(value), 60)}"
        raise TraceError(what, place=_place(node, place), remedy=_REMEDY)
    return value


def _parse_number(node: TraceNode, name: str, place: str) -> float:
    value = node.attributes.get(name)
    if not isinstance(value, int | float) or not isfinite(value):
        what = f"`{name}` is {shorten(repr(value), 60)}, not a number"
        raise TraceError(what, place=_place(node, place), remedy=_REMEDY)
    return float(value)


_REDUCING = (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER)
_ELEMENT_BYTES = 4
"""Of the float32 that gradients are taken to be."""


def annotate_nodes(nodes: Sequence[TraceNode], place: str) -> tuple[list[TraceNode], tuple[str, ...]]:
    """Return the compute nodes with phases and gradients, as `steps` writes them, and notes on what was assumed.

    The last compute node before a reduction completes its gradient. The first such node begins backward and the last
    ends it; compute nodes before are forward, those behind are the optimizer's.

    Raises:
        TraceError: nodes that wait for each other, or for one that is not there.
    """
    ordered = _sort_nodes(nodes, place)
    reducing = [
        node
        for node in ordered
        if node.type == NodeType.COMM_COLL and node.attributes.get("comm_type") in [int(each) for each in _REDUCING]
    ]
    last_before = {node.id: _find_last_computed(node, ordered) for node in reducing}
    gradients: dict[int, list[TraceNode]] = {}
    for node in reducing:
        gradients.setdefault(last_before[node.id], []).append(node)
    computed = [node for node in ordered if node.type == NodeType.COMP]
    places = [number for number, node in enumerate(computed) if node.id in gradients]
    first, last = (places[0], places[-1]) if places else (len(computed), len(computed))
    annotated: list[TraceNode] = [TraceNode(0, PARAMETERS, NodeType.METADATA, outputs=_tensor(reducing[::-1]))]
    for number, node in enumerate(computed):
        phase = FORWARD if number < first else BACKWARD if number <= last else OPTIMIZER
        on_host = bool(node.attributes.get("is_cpu_op", False))
        attributes: dict[str, Attribute] = {"phase": phase, "iteration": 0, "is_cpu_op": on_host}
        mine = gradients.get(node.id, [])
        own = replace(node, attributes=attributes, inputs=Tensors(), outputs=Tensors())
        # A node of the host completes nothing on the device: its gradients are device nodes of no time behind it. Of
        # several gradients of one device node the first has its time.
        if not mine or on_host:
            annotated.append(own)
        for each in mine:
            duration_us = node.duration_us if each is mine[0] and not on_host else 0
            device: dict[str, Attribute] = {**attributes, "is_cpu_op": False}
            outputs = _tensor([each])
            annotated.append(replace(own, duration_us=duration_us, attributes=device, outputs=outputs))
    others = sum(node.communicates for node in nodes) - len(reducing)
    notes = [f"{len(reducing)} reductions count as one gradient each, of float32; forward and backward are told apart "
             "by the first of them"]  # fmt: skip
    notes += [f"{others} other messages are left out"] if others else []
    return annotated, tuple(notes)


def _sort_nodes(nodes: Sequence[TraceNode], place: str) -> list[TraceNode]:
    """Return the nodes in an order that respects dependencies; among those that may come next, the lowest id first.

    Raises:
        TraceError: nodes that wait for each other, or for one that is not there.
    """
    import networkx as nx

    known = {node.id: node for node in nodes}
    graph = nx.DiGraph()
    graph.add_nodes_from(known)
    for node in nodes:
        before = {*node.control, *node.data}
        if unknown := before - known.keys():
            what = f"comes after node {min(unknown)}, which the trace has not"
            raise TraceError(what, place=f"{place}: node {node.id}", remedy="give a whole trace")
        graph.add_edges_from((each, node.id) for each in before)
    try:
        return [known[number] for number in nx.lexicographical_topological_sort(graph)]
    except nx.NetworkXUnfeasible as error:
        stuck = min(number for ends in nx.find_cycle(graph) for number in ends)
        what = "waits for itself, by what it comes after"
        raise TraceError(what, place=f"{place}: node {stuck}", remedy="give a trace without circles") from error


def _find_last_computed(node: TraceNode, ordered: Sequence[TraceNode]) -> int:
    """Return the last compute node, by `ordered`, that `node` depends on, through other nodes too; -1 for none.

    The search stops at compute nodes: those they depend on stand before them in the order.
    """
    by_id, pending = {each.id: each for each in ordered}, {*node.control, *node.data}
    positions = {each.id: number for number, each in enumerate(ordered)}
    seen: set[int] = set()
    last = -1
    while pending:
        number = pending.pop()
        seen.add(number)
        if by_id[number].type == NodeType.COMP:
            last = number if last < 0 or positions[number] > positions[last] else last
            continue
        pending |= {*by_id[number].control, *by_id[number].data} - seen
    return last


def _tensor(nodes: Sequence[TraceNode]) -> Tensors:
    sizes = [[max(1, int(node.attributes.get("comm_size", 0)) // _ELEMENT_BYTES)] for node in nodes]
    names = [f"{node.name} {node.id}" for node in nodes]
    return Tensors(json.dumps(names), json.dumps(sizes), json.dumps(["float32"] * len(nodes)))
