"""Where the collectives of process groups are run that are not all ranks, and which groups there are none for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ddpsim.errors import InputError
from ddpsim.operations import Operation
from ddpsim.schedules.mesh import DATA, STRIDED
from ddpsim.topology.graph import Placement
from ddpsim.topology.placement import place


def part_of(placement: Placement, name: str, ranks: int) -> tuple[Placement, int]:
    """Return where a group's collective is run, and for how many groups of its name it stands."""
    each = placement.gpus_per_node
    if ranks == placement.world_size:
        return placement, 1
    if ranks == 1:
        return place(placement.topology, 1, 1), 1
    if name not in STRIDED:
        nodes = math.ceil(ranks / each)
        return place(placement.topology, nodes, math.ceil(ranks / nodes)), 1
    shards = placement.world_size // ranks
    if shards < each:
        return placement, shards
    return place(placement.topology, ranks, each), each


def part_of_place(placement: Placement, ranks: Sequence[int], groups: int) -> tuple[Placement, int]:
    """Return where the collectives of the ranks of one place in all copies are run, and for how many groups' each.

    They are the GPUs that the ranks have in a node, on as many nodes; in a domain of NVLink, all ranks.

    Args:
        groups: in which the ranks sum, each of one rank a copy.
    """
    each, topology = placement.gpus_per_node, placement.topology
    if topology.nvlink_domain is not None:
        return part_of(placement, DATA, len(ranks) // groups)
    nodes, gpus = len({rank // each for rank in ranks}), sorted({rank % each for rank in ranks})
    seen = topology.visible_devices or range(each)
    return place(replace(topology, visible_devices=tuple(seen[gpu] for gpu in gpus)), nodes, len(gpus)), groups


def share_of_together(ranks: int, part: Placement) -> float:
    """Return the share of bytes that groups of `ranks` send of one collective among all of `part`, run in their place.

    Each rank of a ring sends (p-1)/p of a message once or twice, by which the groups' few ranks send less.
    """
    if ranks in (1, part.world_size):
        return 1.0
    return Operation.ALLREDUCE.sent(ranks) / Operation.ALLREDUCE.sent(part.world_size)


def check_layer_groups(placement: Placement, ranks: int, place: str = "tensor_parallel") -> None:
    """Refuse groups of `ranks` that share layers or experts where they begin or end inside a node that others are on.

    Raises:
        InputError: a number, of the option `place`, that neither divides the ranks of a node nor is a multiple of them.
    """
    each = placement.gpus_per_node
    if ranks % each and each % ranks:
        what = f"groups of {ranks} ranks on nodes of {each}"
        raise InputError(what, place=place, remedy="give a divisor or a multiple of the ranks of a node")
