"""A topology's YAML: read it with every error at once, and write it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpsim.common import shipped
from ddpsim.common.compiled import read_compiled
from ddpsim.common.errors import TopologyError, UnknownNameError
from ddpsim.common.files import display_name, read_text
from ddpsim.topology.bounds import MOST_PAIRS
from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import DegradedLink, Fabric, NodeGroup
from ddpsim.topology.domains import check_domain
from ddpsim.topology.node import Degradation, NodeTemplate, link_names

if TYPE_CHECKING:
    from ddpsim.topology.schema import DegradedSpec, NodeSpec, TopologySpec


def load_topology(name_or_path: str) -> Topology:
    """Return the topology of a file, `-` for standard input, or of a shipped machine by its name.

    Raises:
        UnknownNameError: neither a file nor a shipped machine; the nearest names are given.
        TopologyError: a file that cannot be read, or is malformed, with every error in it.
    """
    path = shipped.find("topology", name_or_path)

    def read(file: Path) -> Topology:
        text = read_text(file, TopologyError, "give a machine's YAML file, or a name that `ddpsim topo list` shows")
        return parse_topology(text, display_name(name_or_path))

    if not shipped.has("topology", path):
        return read(path)
    return read_compiled(path, read, beside=tuple(filter(Path.is_dir, (path.parent, *shipped.FOLDERS["gpu"]))))


def parse_topology(text: str, place: str) -> Topology:
    """Return the topology that YAML `text` describes; `place` names it in errors."""
    from ddpsim.common.documents.yaml_reading import read_mapping

    document = read_mapping(text, place, wanted="a machine")
    spec = _validate(_with_machines(document, place), text, place)
    return _build(spec, place)


def topology_from_document(document: Mapping[str, object], place: str) -> Topology:
    """Return the topology that an importer's `document`, of the YAML's shape, describes."""
    return _build(_validate(dict(document), "", place), place)


def _with_machines(document: dict[str, Any], place: str) -> dict[str, Any]:
    """Replace nodes that name a shipped machine, `node: dgx-a100` or `{machine: dgx-a100, workload: W}`."""
    full = dict(document)
    if "node" in full:
        full["node"] = _machine(full["node"], f"{place}: node")
    if isinstance(full.get("templates"), dict):
        full["templates"] = {
            name: _machine(node, f"{place}: templates.{name}") for name, node in full["templates"].items()
        }
    return full


def _machine(node: object, place: str) -> object:
    changes = {"machine": node} if isinstance(node, str) else node
    if not isinstance(changes, dict) or not isinstance(changes.get("machine"), str):
        return node
    from ddpsim.common.documents.yaml_reading import read_mapping
    from ddpsim.topology.changes import change_node

    try:
        path = shipped.find("topology", changes["machine"])
    except UnknownNameError as error:
        error.at(place)
    inner = read_mapping(path.read_text(encoding="utf-8"), str(path)).get("node")
    if not isinstance(inner, dict):
        raise TopologyError(f"machine {changes['machine']!r} has no single `node`", place=place)
    return change_node(inner, {key: value for key, value in changes.items() if key != "machine"})


def _validate(document: dict[str, Any], text: str, place: str) -> TopologySpec:
    from pydantic import ValidationError

    from ddpsim.common.documents.errors import join_errors, problems
    from ddpsim.common.documents.yaml_reading import line_of
    from ddpsim.topology.schema import TopologySpec

    try:
        return TopologySpec.model_validate(document)
    except ValidationError as error:
        errors = problems(error, TopologySpec, line=(lambda path: line_of(text, path)) if text else None)
    raise join_errors(errors, place, TopologyError)


def _build(spec: TopologySpec, place: str) -> Topology:
    from ddpsim.topology.build import build_node

    groups = tuple(
        NodeGroup(build_node(name, node, f"{place}: {where}"), count)
        for name, node, where, count in _nodes(spec, place)
    )
    # Each check below reads what the ones before it have made sure of: which GPUs are visible before how many ranks a
    # node has, and all templates before a slow link is looked for in them.
    _check_kinds(groups, place)
    degraded = tuple(_build_degraded(entry, f"{place}: degraded.{n}") for n, entry in enumerate(spec.degraded))
    topology = Topology(
        name=spec.name,
        groups=groups,
        fabric=spec.fabric or Fabric("flat" if all(group.template.nics for group in groups) else "none"),
        degraded=degraded,
        sources=tuple(spec.sources),
        confidence=spec.confidence,
        gpus_per_node=spec.gpus_per_node,
        nvlink_domain=spec.nvlink_domain,
    )
    if topology.nvlink_domain is not None:
        check_domain(topology, place)
    if spec.visible_devices:
        topology = with_visible_devices(topology, spec.visible_devices, f"{place}: visible_devices")
    if spec.gpus_per_node is not None:
        _check_gpus_per_node(topology, f"{place}: gpus_per_node")
    if topology.degraded:
        _check_degraded(topology, place)
    return topology


def _nodes(spec: TopologySpec, place: str) -> list[tuple[str, NodeSpec, str, int]]:
    if (spec.node is None) == (not spec.templates):
        raise TopologyError(
            "a file has either `node` or `templates`", place=place, remedy="write `node:` and its parts"
        )
    if spec.node is not None:
        if not isinstance(spec.nodes, int):
            raise TopologyError("`nodes` names templates, the file has one `node`", place=f"{place}: nodes")
        return [(spec.name, spec.node, "node", spec.nodes)]
    if not isinstance(spec.nodes, dict):
        counts = ", ".join(f"{name}: 1" for name in spec.templates)
        raise TopologyError(
            "`nodes` must say how many of each template", place=f"{place}: nodes", remedy=f"write nodes: {{{counts}}}"
        )
    for name in spec.nodes:
        if name not in spec.templates:
            raise UnknownNameError.among("template", str(name), spec.templates, place=f"{place}: nodes")
    return [(name, spec.templates[name], f"templates.{name}", count) for name, count in spec.nodes.items()]


def _check_kinds(groups: tuple[NodeGroup, ...], place: str) -> None:
    pairs = sum(len(g.template.gpus) * max(len(g.template.gpus), len(g.template.nics)) for g in groups)
    if pairs > MOST_PAIRS:
        raise TopologyError(
            f"{len(groups)} kinds of nodes with {pairs} pairs of devices between them are more than is searched",
            place=f"{place}: templates",
            remedy=f"describe fewer kinds, or smaller ones: at most {MOST_PAIRS} pairs",
        )


def _build_degraded(spec: DegradedSpec, place: str) -> DegradedLink:
    if spec.bandwidth is None and spec.delay is None:
        raise TopologyError(f"{spec.link} is not changed", place=place, remedy="give `bandwidth`, `delay` or both")
    return DegradedLink(spec.link, spec.node, Degradation(spec.bandwidth, spec.delay))


def with_visible_devices(topology: Topology, numbers: Sequence[int], place: str) -> Topology:
    """Return `topology` with ranks on the GPUs `numbers` of every node, in that order.

    Raises:
        TopologyError: none, one twice, or one that some node lacks; with `place`.
    """
    fewest = min(len(group.template.gpus) for group in topology.groups)
    absent = [number for number in numbers if not 0 <= number < fewest]
    if absent:
        raise TopologyError(
            f"GPU {absent[0]} is visible, a node has {fewest} GPUs",
            place=place,
            remedy=f"number them 0 to {fewest - 1}",
        )
    if not numbers or len(set(numbers)) < len(numbers):
        shown = ", ".join(map(str, numbers)) or "none"
        raise TopologyError(f"visible GPUs {shown}", place=place, remedy="name each GPU once")
    return replace(topology, visible_devices=tuple(numbers))


def _check_gpus_per_node(topology: Topology, place: str) -> None:
    fewest = min(len(topology.gpus_of(group.template)) for group in topology.groups)
    if topology.gpus_per_node is not None and topology.gpus_per_node > fewest:
        kind = "GPUs" if topology.visible_devices is None else "visible GPUs"
        raise TopologyError(
            f"{topology.gpus_per_node} ranks a node, a node has {fewest} {kind}",
            place=place,
            remedy=f"write at most {fewest}",
        )


def _check_degraded(topology: Topology, place: str) -> None:
    for number, entry in enumerate(topology.degraded):
        where = f"{place}: degraded.{number}.link"
        if entry.in_fabric:
            known = set(topology.trunks(topology.nodes))
            link_names(entry.link, known or {"leaf0>spine0", "spine0>leaf0"}, where)
            continue
        templates = (
            [group.template for group in topology.groups] if entry.node is None else [_template(topology, entry, place)]
        )
        link_names(entry.link, {link.name for template in templates for link in template.links}, where)


def _template(topology: Topology, entry: DegradedLink, place: str) -> NodeTemplate:
    if entry.node is not None and entry.node >= topology.nodes and not topology.elastic:
        raise TopologyError(f"node {entry.node} of {topology.nodes}", place=place, remedy="number nodes from 0")
    return topology.template_of(entry.node or 0)
