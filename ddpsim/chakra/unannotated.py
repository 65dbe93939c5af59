"""A trace without phases, as of other tools: its collectives become gradients, its compute nodes forward and backward.

Compute nodes are replayed without communication, each on the host or the device, one after the other on either. What
is over when the first gradient's own last node begins counts as forward, what comes after the last gradient as the
optimizer. Gradients wait for the end of the nodes that their collective comes after.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from ddpsim.chakra.schema import Attribute, CollectiveType, NodeType, Tensors, TraceNode
from ddpsim.chakra.steps import BACKWARD, FORWARD, OPTIMIZER, PARAMETERS
from ddpsim.errors import TraceError

_REDUCING = (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER)
_ELEMENT_BYTES = 4
"""Of the float32 that gradients are taken to be."""


def annotate_nodes(nodes: Sequence[TraceNode], place: str) -> tuple[list[TraceNode], tuple[str, ...]]:
    """Return the compute nodes with their phases and gradients, and what was assumed.

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
    found: list[TraceNode] = [TraceNode(0, PARAMETERS, NodeType.METADATA, outputs=_tensor(reducing[::-1]))]
    for number, node in enumerate(computed):
        phase = FORWARD if number < first else BACKWARD if number <= last else OPTIMIZER
        on_host = bool(node.attributes.get("is_cpu_op", False))
        attributes: dict[str, Attribute] = {"phase": phase, "iteration": 0, "is_cpu_op": on_host}
        mine = gradients.get(node.id, [])
        own = replace(node, attributes=attributes, inputs=Tensors(), outputs=Tensors())
        # A host's node completes nothing on the device: the gradient is a device node of no time behind it.
        if not mine or on_host:
            found.append(own)
        for each in mine:
            duration_us = node.duration_us if each is mine[0] and not on_host else 0
            device: dict[str, Attribute] = {**attributes, "is_cpu_op": False}
            outputs = _tensor([each])
            found.append(replace(own, duration_us=duration_us, attributes=device, outputs=outputs))
    others = sum(node.communicates for node in nodes) - len(reducing)
    notes = [f"{len(reducing)} reductions count as one gradient each, of float32; forward and backward are told apart "
             "by the first of them"]  # fmt: skip
    notes += [f"{others} other messages are left out"] if others else []
    return found, tuple(notes)


def _sort_nodes(nodes: Sequence[TraceNode], place: str) -> list[TraceNode]:
    """Return nodes each behind what it comes after; of those that may come next, that of the lowest id.

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
    """Return the last compute node that `node` comes after, through whatever; -1 where there is none."""
    known, wanted = {each.id: each for each in ordered}, {*node.control, *node.data}
    places = {each.id: number for number, each in enumerate(ordered)}
    seen: set[int] = set()
    best = -1
    while wanted:
        number = wanted.pop()
        seen.add(number)
        if known[number].type == NodeType.COMP:
            best = number if best < 0 or places[number] > places[best] else best
            continue
        wanted |= {*known[number].control, *known[number].data} - seen
    return best


def _tensor(nodes: Sequence[TraceNode]) -> Tensors:
    sizes = [[max(1, int(node.attributes.get("comm_size", 0)) // _ELEMENT_BYTES)] for node in nodes]
    names = [f"{node.name} {node.id}" for node in nodes]
    return Tensors(json.dumps(names), json.dumps(sizes), json.dumps(["float32"] * len(nodes)))
