"""The other GPUs of a node that a scheduler may hand out: those farthest from its NICs."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.topology.paths import KINDS, find_paths
from ddpsim.topology.placement import Placement, place


def farthest_from_nics(placement: Placement) -> Placement | None:
    """Return as many ranks on the GPUs of each node that are farthest from its NICs.

    None on one node, where a file says which GPUs are visible, where all of a node are used, and where all are as far.
    """
    topology, count = placement.topology, placement.gpus_per_node
    template = placement.classes[0].template
    if placement.nodes == 1 or topology.visible_devices is not None or count == len(template.gpus):
        return None
    paths = find_paths(template, pxn=False)
    # How far each GPU is from the NIC nearest to it, as an index of `KINDS`.
    distances = [min(KINDS.index(paths[gpu.name, nic.name].kind) for nic in template.nics) for gpu in template.gpus]
    farthest = sorted(range(len(distances)), key=lambda number: (-distances[number], number))[:count]
    if sum(distances[:count]) == sum(distances[number] for number in farthest):
        return None
    other = replace(topology, visible_devices=tuple(sorted(farthest)), gpus_per_node=None)
    return place(other, placement.nodes, count)
