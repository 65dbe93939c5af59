"""Heads of in-switch reductions: which GPUs take sums from the switch, and how fast, as NCCL finds them.

Source: NCCL 2.30 `src/graph/search.cc`, pattern NVLS: one channel a head, each moving its part over every GPU's link to
the switch, twice over the head's own; the more heads the better. On one node every GPU is a head, between nodes the
GPU nearest to each NIC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpsim.collectives.channel_search import speeds_of
from ddpsim.collectives.routes import total_by_key
from ddpsim.topology.node import NETWORK, NodeTemplate, VertexKind
from ddpsim.topology.paths import Paths, find_paths

MOST_HEADS = 32
"""Heads at most, one a channel."""
_SLACK = 1e-9
"""Relative: rounding that does not make a speed too fast."""


@dataclass(frozen=True, slots=True)
class SwitchGraph:
    """Which GPUs are heads of an in-switch reduction, and how fast each head's channel is.

    Attributes:
        heads: the GPUs that take sums, one channel each.
        inside: bytes per second of a channel in the node as NCCL counts it.
        across: the same at the NIC; on one node what NCCL raises it to all the same.
    """

    heads: tuple[str, ...]
    inside: float
    across: float


def find_switch_graph(template: NodeTemplate, gpus: Sequence[str], *, network: bool) -> SwitchGraph | None:
    """Return the heads among `gpus`; None where fewer than two, or where a GPU has no link to a switch."""
    template = template.select_gpus(gpus)
    widths = _switch_widths(template)
    paths = find_paths(template)
    nics = _find_nearest_nics(template, gpus, paths) if network else {}
    heads = (tuple(nics) if network else tuple(gpus))[:MOST_HEADS]
    if len(heads) < 2 or not all(gpu in widths for gpu in gpus):
        return None
    carried = _find_nic_rate(template, nics, paths)
    speeds = speeds_of(min(gpu.sm for gpu in template.gpus), network)
    room = min(widths[gpu] / (len(heads) + (gpu in heads)) for gpu in gpus)
    inside = next((speed for speed in speeds if speed <= min(room, carried) * (1 + _SLACK)), None)
    if inside is None:
        return None
    faster = [speed for speed in reversed(speeds) if inside < speed <= carried * (1 + _SLACK)]
    across = next((speed for speed in faster if speed >= 2 * inside), max(faster, default=inside))
    return SwitchGraph(heads, inside, across)


def _switch_widths(template: NodeTemplate) -> dict[str, float]:
    """Return bytes per second between each GPU and the switches, of the slower direction."""
    widths: dict[str, float] = {}
    for link in template.links:
        gpu = next((end.name for end in link.ends() if end.kind == VertexKind.GPU), None)
        if gpu is not None and link.at(VertexKind.NVSWITCH):
            widths[gpu] = min(widths.get(gpu, link.bandwidth), link.bandwidth)
    return widths


def _find_nearest_nics(template: NodeTemplate, gpus: Sequence[str], paths: Paths) -> dict[str, str]:
    """Return the NIC of each GPU that is the nearest one to some NIC."""
    found: dict[str, str] = {}
    for nic in template.nics:
        gpu = min(gpus, key=lambda gpu: paths.distance(nic.name, gpu))
        found.setdefault(gpu, nic.name)
    return found


def _find_nic_rate(template: NodeTemplate, nics: Mapping[str, str], paths: Paths) -> float:
    """Return bytes per second that all heads can exchange with their NICs at once, each."""
    routes = [route for gpu, nic in nics.items() for route in (paths[nic, gpu], paths[gpu, nic])]
    ports = [(port, 1.0) for nic in nics.values() for port in (f"{NETWORK}>{nic}", f"{nic}>{NETWORK}")]
    loads = total_by_key([*((link.name, load) for route in routes for link, load in route.loads()), *ports])
    capacities = {link.name: link.bandwidth for link in template.links}
    return min((capacities[link] / load for link, load in loads.items()), default=float("inf"))
