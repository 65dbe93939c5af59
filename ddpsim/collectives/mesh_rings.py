"""The rings of eight GPUs that xGMI joins each to each.

RCCL has the GPU orders of such boards in tables, for a search would find fewer (ROCm/rccl src/graph/rome_models.cc
@cb829d62: rome_model_79 on one node, rome_model_81 with a NIC for each GPU). These orders are others that load the
links in the same way: on one node seven cycles in both directions, which take every link twice; between nodes eight
paths, one from each GPU by its own NIC, which take every link once. Each is there as often as in RCCL's tables, two
times and eight, of which four fit the channels searched here.
"""

from __future__ import annotations

from ddpsim.collectives.ring_search import Ring
from ddpsim.topology.node import MESHED, NodeTemplate, is_mesh
from ddpsim.topology.paths import Paths

_COPIES = 4
"""Of each path between nodes: 32 channels in all."""


def mesh_rings(template: NodeTemplate, paths: Paths, *, network: bool) -> list[Ring]:
    """Return the rings of a mesh of eight; none of another node, or where GPUs and NICs are not beside each other."""
    gpus = tuple(gpu.name for gpu in template.gpus)
    if not is_mesh(template):
        return []
    if not network:
        cycles = [(gpus[-1], *(gpus[place] for place in zigzag(start, MESHED - 1))) for start in range(MESHED - 1)]
        return 2 * [Ring(order) for cycle in cycles for order in (cycle, (cycle[0], *reversed(cycle[1:])))]
    nearest = {gpu: min((nic.name for nic in template.nics), key=lambda nic: paths.distance(gpu, nic)) for gpu in gpus}
    if len(set(nearest.values())) < len(gpus):
        return []
    orders = [tuple(gpus[place] for place in zigzag(start, MESHED)) for start in range(MESHED)]
    return _COPIES * [Ring(order, nearest[order[0]], nearest[order[-1]]) for order in orders]


def zigzag(start: int, count: int) -> list[int]:
    """Return all numbers below `count`, from `start` to both sides by turns: start, +1, -1, +2, -2, ..."""
    steps = [0] + [side * step for step in range(1, count // 2 + 1) for side in (1, -1)]
    return [(start + step) % count for step in steps[:count]]
