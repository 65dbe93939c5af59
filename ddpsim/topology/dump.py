"""A topology back to the YAML that `load_topology` reads to an equal one, short inner values on one line.

Start at `document_of`; `_PcieTree` is the one part that is found anew from links.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import yaml

from ddpsim.common.documents import fields
from ddpsim.common.units import format_bandwidth
from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import DegradedLink
from ddpsim.topology.hardware import PCIE_X16_BANDWIDTH, gpu_facts
from ddpsim.topology.node import GDR_LEVEL, GPU_LINKS, NETWORK, Link, Nic, NodeTemplate, VertexKind

_WIDTH, _SHORT = 110, 110
"""Characters of a line, and of a mapping that is written on one."""


class _FlowStyle(list[object]):
    """A list written on one line."""


class _FlowMapping(dict[str, object]):
    """A mapping written on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes short inner values on one line, so that a machine fits on a page."""


_Dumper.add_representer(
    _FlowStyle, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)
_Dumper.add_representer(
    _FlowMapping, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True)
)


def write_mapping(document: dict[str, object]) -> str:
    """Return `document` as YAML, keys in their order, short inner values on one line."""
    flowed = {key: _write_flow(value) for key, value in document.items()}
    return yaml.dump(flowed, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)


def _write_flow(value: object) -> object:
    if isinstance(value, dict):
        inner = {key: _write_flow(item) for key, item in value.items()}
        short = len(repr(value)) < _SHORT and not any(_has_text(item) for item in value.values())
        return _FlowMapping(inner) if short else inner
    if isinstance(value, list):
        if any(isinstance(item, dict) or _has_text(item) for item in value):
            return [_write_flow(item) for item in value]
        return _FlowStyle([_FlowStyle(item) if isinstance(item, list) else item for item in value])
    return value


def _has_text(value: object) -> bool:
    return isinstance(value, str) and " " in value


def dump_topology(topology: Topology) -> str:
    """Return `topology` as YAML text."""
    return write_mapping(document_of(topology))


def document_of(topology: Topology) -> dict[str, object]:
    """Return `topology` as the mapping that its YAML holds."""
    document: dict[str, object] = {"name": topology.name}
    if topology.sources:
        document["sources"] = list(topology.sources)
    if topology.confidence:
        document["confidence"] = topology.confidence
    first = topology.groups[0]
    if len(topology.groups) == 1 and first.template.name == topology.name:
        document |= {"nodes": first.count, "node": _node(first.template)}
    else:
        document["nodes"] = {group.template.name: group.count for group in topology.groups}
        document["templates"] = {group.template.name: _node(group.template) for group in topology.groups}
    if topology.gpus_per_node is not None:
        document["gpus_per_node"] = topology.gpus_per_node
    if topology.visible_devices is not None:
        document["visible_devices"] = list(topology.visible_devices)
    if topology.nvlink_domain is not None:
        document["nvlink_domain"] = fields.document_of(topology.nvlink_domain)
    document["fabric"] = fields.document_of(topology.fabric)
    if topology.degraded:
        document["degraded"] = [_describe_degraded(entry) for entry in topology.degraded]
    return document


def _node(template: NodeTemplate) -> dict[str, object]:
    links = {link.name: link for link in template.links}
    processes = template.gpus[0].kind == VertexKind.PROCESS
    node: dict[str, object] = _processes(template, links) if processes else _gpus(template)
    if not processes:
        node |= _nvlinks(template)
        node["pcie"] = _PcieTree(template).document()
    node["cpu"] = _cpu(template, links)
    if template.nics:
        node["nics"] = _nics(template, links)
    if template.workload is not None:
        node["workload"] = template.workload
    if template.rings:
        node["rings"] = [list(ring) for ring in template.rings]
    if template.trees:
        node["trees"] = [list(tree) for tree in template.trees]
    for key, bandwidth in (("ring_bandwidth", template.ring_bandwidth), ("tree_bandwidth", template.tree_bandwidth)):
        if bandwidth is not None:
            node[key] = format_bandwidth(bandwidth)
    if template.extras:
        node["extras"] = dict(template.extras)
    return node


def _gpus(template: NodeTemplate) -> dict[str, object]:
    gpu = template.gpus[0]
    gpus: dict[str, object] = {"count": len(template.gpus), "model": gpu.model}
    facts = gpu_facts(gpu.model)
    if facts is None or facts.sm != gpu.sm:
        gpus["sm"] = gpu.sm
    if template.peer_to_peer is not None:
        gpus["peer_to_peer"] = template.peer_to_peer
    return {"gpus": gpus}


def _processes(template: NodeTemplate, links: dict[str, Link]) -> dict[str, object]:
    total, one = links["host_out>host_in"], links["process0>host_out"]
    processes: dict[str, object] = {
        "count": len(template.gpus),
        "rate": format_bandwidth(one.bandwidth),
        "total": format_bandwidth(total.bandwidth),
    }
    return {"processes": processes | _delay(total)}


def _nvlinks(template: NodeTemplate) -> dict[str, object]:
    pairs = [link for link in template.links if link.kind in GPU_LINKS and link.source < link.target]
    switched = [link for link in pairs if link.target_kind == VertexKind.NVSWITCH]
    direct = [link for link in pairs if link.target_kind != VertexKind.NVSWITCH]
    links: dict[str, object] = {}
    if direct:
        one = {"bandwidth": format_bandwidth(direct[0].bandwidth / direct[0].count)} | _delay(direct[0])
        links[direct[0].kind] = one | {
            "pairs": [[_number(link.source), _number(link.target), link.count] for link in direct]
        }
    if switched:
        link = switched[0]
        one = {"links_per_gpu": link.count, "bandwidth": format_bandwidth(link.bandwidth / link.count)}
        links["nvswitch"] = one | _delay(link)
    return links


class _PcieTree:
    """Rebuilds the tree from the links that lead upwards."""

    def __init__(self, template: NodeTemplate) -> None:
        self._parents = template.parents()
        widths = [link.bandwidth for link in self._parents.values()]
        # The width that most devices have is stated once; the others stand by device, as `load_topology` reads them.
        self._slot = max(widths, key=widths.count, default=PCIE_X16_BANDWIDTH[3])
        self._sockets = template.cpu.sockets

    def document(self) -> dict[str, object]:
        """Return the `pcie` part of a node."""
        pcie: dict[str, object] = {"bandwidth": format_bandwidth(self._slot)}
        devices = {
            self._first_port(link): format_bandwidth(link.bandwidth)
            for link in self._parents.values()
            if link.bandwidth != self._slot
            and link.source_kind != VertexKind.PCIE
            and link.target_kind != VertexKind.ADAPTER
        }
        if devices:
            pcie["devices"] = devices
        slots = [{"socket": n} | branch for n in range(self._sockets) if (branch := self._branch(f"cpu{n}"))]
        switches = [
            {"socket": _number(self._parents[name].target)} | self._switch(name)
            for name in self._switches()
            if self._parents[name].target_kind == VertexKind.CPU
        ]
        if switches:
            pcie["switches"] = switches
        if slots or not switches:  # an empty list says that nothing stands in a slot, where none would be the default's
            pcie["slots"] = slots
        return pcie

    def _switches(self) -> list[str]:
        return sorted(
            (name for name, link in self._parents.items() if link.source_kind == VertexKind.PCIE), key=_number
        )

    def _switch(self, name: str) -> dict[str, Any]:
        branch = self._branch(name)
        if self._parents[name].bandwidth != self._slot:
            branch["bandwidth"] = format_bandwidth(self._parents[name].bandwidth)
        inner = [self._switch(other) for other in self._switches() if self._parents[other].target == name]
        return branch | ({"switches": inner} if inner else {})

    def _branch(self, parent: str) -> dict[str, Any]:
        below = [link for link in self._parents.values() if link.target == parent]
        gpus = [_number(link.source) for link in below if link.source_kind == VertexKind.GPU]
        nics: list[object] = [
            self._ports(link.source) if link.source_kind == VertexKind.ADAPTER else _number(link.source)
            for link in below
            if link.source_kind in (VertexKind.ADAPTER, VertexKind.NIC)
        ]
        return ({"gpus": gpus} if gpus else {}) | ({"nics": nics} if nics else {})

    def _first_port(self, link: Link) -> str:
        return f"nic{self._ports(link.source)[0]}" if link.source_kind == VertexKind.ADAPTER else link.source

    def _ports(self, adapter: str) -> list[int]:
        return [_number(name) for name, link in self._parents.items() if link.target == adapter]


def _cpu(template: NodeTemplate, links: dict[str, Link]) -> dict[str, object]:
    cpu = template.cpu
    document: dict[str, object] = {
        "sockets": cpu.sockets,
        "arch": cpu.arch,
        "vendor": cpu.vendor,
        "model": cpu.model,
    }
    between = links.get("cpu0>cpu1")
    if between is None:
        return document
    return document | {"bandwidth": format_bandwidth(between.bandwidth)} | _delay(between)


def _nics(template: NodeTemplate, links: dict[str, Link]) -> list[object]:
    def alike(nic: Nic) -> dict[str, object]:
        document: dict[str, object] = {"rate": format_bandwidth(nic.bandwidth), "kind": nic.kind}
        if nic.latency_s:
            document["latency"] = _time(nic.latency_s)
        document |= _delay(links[f"{nic.name}>{NETWORK}"]) | {"gpudirect": nic.gpudirect}
        document |= {} if nic.in_order == (nic.kind != "efa") else {"in_order": nic.in_order}
        return document | ({} if nic.gdr_level == GDR_LEVEL else {"gdr_level": nic.gdr_level})

    return [{"count": len(list(same))} | document for document, same in groupby(map(alike, template.nics))]


def _describe_degraded(entry: DegradedLink) -> dict[str, object]:
    document: dict[str, object] = {"link": entry.link}
    if entry.node is not None:
        document["node"] = entry.node
    if entry.change.bandwidth is not None:
        document["bandwidth"] = format_bandwidth(entry.change.bandwidth)
    if entry.change.latency_s is not None:
        document["delay"] = _time(entry.change.latency_s)
    return document


def _delay(link: Link) -> dict[str, object]:
    return {"delay": _time(link.latency_s)} if link.latency_s else {}


def _time(seconds: float) -> str:
    return f"{seconds!r}s"


def _number(name: str) -> int:
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
