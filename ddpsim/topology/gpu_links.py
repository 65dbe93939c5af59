"""The links between the GPUs of a node that are no part of its PCIe tree: NVLink, NVSwitches, xGMI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from ddpsim.errors import TopologyError
from ddpsim.topology.hardware import gcn_of, nvlink_bandwidth, xgmi_bandwidth
from ddpsim.topology.node import Gpu, Link, NodeTemplate, both_ways
from ddpsim.topology.schema import NodeSpec, XgmiSpec
from ddpsim.topology.vertices import Vertex, VertexKind

_MESHED = ("gfx94", "gfx95")
"""Architectures whose boards of eight join every two GPUs, by all seven xGMI links that a GPU has."""
MESHED = 8
"""GPUs of such a board."""


def gpu_links(spec: NodeSpec, gpus: Sequence[Gpu], place: str) -> Iterator[Link]:
    """Yield the NVLinks or xGMI links that a node's file states, in both directions.

    Raises:
        TopologyError: links of another vendor than the GPUs', a pair that is none or named twice, a mesh with a hole.
    """
    gcn = gcn_of(gpus[0].model)
    for key, ours in (("nvlink", not gcn), ("nvswitch", not gcn), ("xgmi", bool(gcn))):
        if getattr(spec, key) is not None and not ours:
            other = "nvlink` or `nvswitch" if key == "xgmi" else "xgmi"
            what = f"{gpus[0].model} has no {'xGMI' if key == 'xgmi' else 'NVLink'}"
            raise TopologyError(what, place=f"{place}.{key}", remedy=f"write `{other}`, or leave it out")
    one = nvlink_bandwidth(gpus[0].sm)
    if spec.nvlink is not None:
        for first, second, links in _checked(spec.nvlink.pairs, gpus, f"{place}.nvlink.pairs"):
            bandwidth = links * (spec.nvlink.bandwidth or one)
            yield from both_ways(gpus[first].vertex, gpus[second].vertex, "nvlink", bandwidth, spec.nvlink.delay, links)
    if spec.nvswitch is not None:
        links = spec.nvswitch.links_per_gpu
        bandwidth = links * (spec.nvswitch.bandwidth or one)
        switch = Vertex.numbered(VertexKind.NVSWITCH, 0)
        for gpu in gpus:
            yield from both_ways(gpu.vertex, switch, "nvlink", bandwidth, spec.nvswitch.delay, links)
    if spec.xgmi is not None:
        bandwidth = spec.xgmi.bandwidth or xgmi_bandwidth(gcn)
        for first, second, links in _xgmi_pairs(spec.xgmi, gpus, gcn, f"{place}.xgmi"):
            ends = gpus[first].vertex, gpus[second].vertex
            yield from both_ways(*ends, "xgmi", links * bandwidth, spec.xgmi.delay, links)


def is_mesh(template: NodeTemplate) -> bool:
    """Return whether a node is eight GPUs of which xGMI joins every two."""
    joined = {(link.source, link.target) for link in template.links if link.kind == "xgmi"}
    return len(template.gpus) == MESHED and len(joined) == MESHED * (MESHED - 1)


def _checked(pairs: Sequence[Sequence[int]], gpus: Sequence[Gpu], place: str) -> Iterator[tuple[int, int, int]]:
    seen: set[frozenset[int]] = set()
    for number, (first, second, links) in enumerate(pairs):
        pair = frozenset((first, second))
        if max(pair) >= len(gpus) or len(pair) == 1 or pair in seen or links < 1:
            raise TopologyError(
                f"[{first}, {second}, {links}] is no pair of different GPUs below {len(gpus)}, named once",
                place=f"{place}.{number}",
                remedy="write [first, second, links]",
            )
        seen.add(pair)
        yield first, second, links


def _xgmi_pairs(spec: XgmiSpec, gpus: Sequence[Gpu], gcn: str, place: str) -> list[tuple[int, int, int]]:
    every = list(combinations(range(len(gpus)), 2))
    if (spec.mesh is None) == (spec.pairs is None):
        what = "neither `mesh` nor `pairs`" if spec.mesh is None else "both `mesh` and `pairs`"
        raise TopologyError(what, place=place, remedy="write `mesh: 1`, or `pairs` of [first, second, links]")
    if spec.pairs is None:
        return [(first, second, spec.mesh or 1) for first, second in every]
    found = list(_checked(spec.pairs, gpus, f"{place}.pairs"))
    joined = {frozenset(pair[:2]) for pair in found}
    missing = [pair for pair in every if frozenset(pair) not in joined]
    if missing and gcn.startswith(_MESHED) and len(gpus) == MESHED:
        first, second = missing[0]
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise TopologyError(
            f"no link joins gpu{first} and gpu{second}{more}: eight {gpus[0].model} are a mesh of {len(every)} links",
            place=f"{place}.pairs",
            remedy="write `mesh: 1`, and what is slow under `degraded`",
        )
    return found
