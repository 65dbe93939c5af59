"""Copies of batches to devices, on the links that they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import simpy

from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.transport import alone_s
from ddpsim.network.fairness import Demand, LinkId
from ddpsim.network.fluid import Network
from ddpsim.options.input_stage import InputStage
from ddpsim.topology.graph import Placement
from ddpsim.topology.hardware import PCIE_X16_BANDWIDTH, gpu_facts
from ddpsim.topology.paths import find_paths

_GENERATION = 3
"""PCIe generation of a GPU of which nothing is known: the oldest still in use, whose copies take longest."""

COPIES = "copies"
"""Who sends batches: a copy engine, which the computation of no rank slows."""

Copy = Callable[[], simpy.Event]
"""Starts the copy of a batch; the event is its end."""


def copies_on(network: Network, placement: Placement, ranks: Sequence[int], stage: InputStage, *, closed: bool) -> Copy:
    """Return what copies a batch to the GPU of each of `ranks`, all at once, over the links that messages share.

    Ranks of other nodes than the first's are alike, and load links of their own.

    Args:
        closed: whether nothing else is on the links, as the closed forms of collectives have it.
    """
    demand, capacities = copies_of(placement, ranks, stage)
    network.add(capacities)
    if closed:
        return lambda: network.env.timeout(alone_s(demand, network.capacities))
    return lambda: network.transfer(demand, COPIES)


def copies_of(placement: Placement, ranks: Sequence[int], stage: InputStage) -> tuple[Demand, dict[LinkId, float]]:
    """Return the demand of the copies of `ranks` on the first one's node, and the capacities of its links."""
    node, _, node_class = placement.node_of(ranks[0])
    template, names, wiring = node_class.template, placement.gpus(node_class), PlacementLinks(placement)
    paths = find_paths(template)
    loads: dict[LinkId, float] = {}
    capacities: dict[LinkId, float] = {}
    gpus = _on_node(placement, ranks, node)
    for gpu in gpus:
        for placed in wiring.at(node, paths.from_host(names[gpu])):
            loads[placed.name] = loads.get(placed.name, 0.0) + 1.0
            capacities[placed.name] = placed.link.bandwidth
    count = len(gpus)
    if stage.in_turn:
        size, loads = count * stage.copy_bytes, {link: load / count for link, load in loads.items()}
        return Demand(0.0, size, loads, rate_limit=stage.limit_Bps), capacities
    return Demand(0.0, stage.copy_bytes, loads, rate_limit=stage.limit_Bps, weight=count), capacities


def alone_on(env: simpy.Environment, stage: InputStage, model: str | None) -> Copy:
    """Return what copies a batch to a GPU that has a slot of sixteen lanes to itself."""
    facts = None if model is None else gpu_facts(model)
    slot_Bps = PCIE_X16_BANDWIDTH[_GENERATION if facts is None else facts.pcie]  # noqa: N806
    copy_s = stage.copy_bytes / min(slot_Bps, stage.limit_Bps)
    return lambda: env.timeout(copy_s)


def _on_node(placement: Placement, ranks: Iterable[int], node: int) -> list[int]:
    """Return the GPUs of `node` that `ranks` run on, numbered in the node."""
    each = placement.gpus_per_node
    return [rank % each for rank in ranks if rank // each == node]
