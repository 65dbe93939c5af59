"""A rank of several devices, as a graph: each computes its part in turn, and what one makes is copied to the next.

One host launches for all. A copy is queued on the stream of the device that it comes from, begins once the stream of
the other has come to where it is needed, and that one goes on when it has ended: so torch copies between GPUs
(`aten/src/ATen/native/cuda/Copy.cu`, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from ddpsim.collectives.routes import PlacementLinks
from ddpsim.network.fairness import Demand, LinkId, alone_s
from ddpsim.network.fluid import Network
from ddpsim.simulation.graph import IterationNodes, NodeKind, PartNodes, PeerCopy
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.run import CopyBetween
from ddpsim.topology.graph import Placement
from ddpsim.topology.paths import find_paths
from ddpsim.workload.devices import DevicePart

PEER_COPIES = "copies between devices"
"""Who sends activations: copy engines, which the computation of no rank slows."""


class DeviceTurns:
    """Lets the devices of a rank compute in turn, and notes what each of them did.

    Args:
        to: the rank's resources.
        parts: its devices, in forward's order; empty where it has one.
    """

    def __init__(self, to: RankBuilder, parts: Sequence[DevicePart]) -> None:
        self._to, self._parts = to, parts
        self._name, self._begun, self._lowest = "", 0, 0

    def begin(self, name: str, begun: int) -> None:
        """Let the current device begin what it does of a phase where the node `begun` has ended."""
        self._name, self._begun, self._lowest = name, begun, self._to.current

    def hand_over(self, nodes: IterationNodes, target: int) -> tuple[int, int]:
        """Copy what the current device has made to `target`, and go on there.

        Returns:
            The nodes at whose ends the device had made it, and the other had come to where it is needed.
        """
        to, source = self._to, self._to.current
        to.on_device(target)
        free = to.event()
        to.on_device(source)
        made = to.moment()
        waited = to.add_on_stream(NodeKind.WAIT, after=(free,))
        copied = to.add_on_stream(NodeKind.PEER_COPY)
        size_bytes = self._parts[min(source, target)].sent_bytes
        to.graph.peer_copies[copied] = PeerCopy(source, target, size_bytes)
        to.on_device(target)
        nodes.parts.append(PartNodes(source, self._name, self._begun, made))
        nodes.parts.append(PartNodes(source, "copy", waited, copied))
        self._begun = to.add_on_stream(NodeKind.WAIT, after=(copied,))
        return made, waited

    def go_back(self, nodes: IterationNodes, target: int, begun: int) -> int:
        """Let backward go on on `target`, with the copies that lead there; it may come back to where it has been.

        Args:
            begun: an event on the device from which on it has computed of backward.

        Returns:
            The same on the device that computes now.
        """
        to = self._to
        to.on_device(self._lowest)
        while self._lowest > target:
            self.hand_over(nodes, self._lowest - 1)
            there = to.event()
            to.on_device(self._lowest)
            nodes.backward.append((begun, to.event()))
            begun, self._lowest = there, self._lowest - 1
            to.on_device(self._lowest)
        to.on_device(target)
        return begun

    def join(self) -> None:
        """Let the rank be done when all its devices are."""
        to, ends = self._to, list[int]()
        for number in range(1, len(self._parts)):
            to.on_device(number)
            ends.append(to.event())
        to.on_device(0)
        if ends:
            to.add_on_stream(NodeKind.WAIT, after=tuple(ends))
            to.rank.last = to.event()

    def end(self, nodes: IterationNodes) -> None:
        """Note what the current device, the lowest that backward has come to, has done of the phase until now."""
        if not self._parts:
            return
        self._to.on_device(self._lowest if self._name == "backward" else self._to.current)
        nodes.parts.append(PartNodes(self._to.current, self._name, self._begun, self._to.moment()))


def copies_between(network: Network, placement: Placement, ranks: Sequence[int], *, closed: bool) -> CopyBetween:
    """Return what copies between two devices of each of `ranks`, all at once, over the links that messages share.

    Ranks of other nodes than the first's are alike, and load links of their own.

    Args:
        closed: whether nothing else is on the links, as the closed forms of collectives have it.
    """
    known: dict[PeerCopy, Demand] = {}

    def copy(asked: PeerCopy) -> simpy.Event:
        if asked not in known:
            known[asked], capacities = peer_demand(placement, ranks, asked)
            network.add(capacities)
        if closed:
            return network.env.timeout(alone_s(known[asked], network.capacities))
        return network.transfer(known[asked], PEER_COPIES)

    return copy


def peer_demand(placement: Placement, ranks: Sequence[int], copy: PeerCopy) -> tuple[Demand, dict[LinkId, float]]:
    """Return the demand of a copy on each of `ranks` on the first one's node, and the capacities of its links."""
    node, _, node_class = placement.node_of(ranks[0])
    paths, wiring = find_paths(node_class.template), PlacementLinks(placement)
    sources, targets = (placement.of_device(number).gpus(node_class) for number in (copy.source, copy.target))
    each = placement.gpus_per_node
    here = [rank % each for rank in ranks if rank // each == node]
    loads: dict[LinkId, float] = {}
    capacities: dict[LinkId, float] = {}
    latency_s = 0.0
    for place in here:
        route = paths[sources[place], targets[place]]
        latency_s = max(latency_s, route.latency_s)
        for link, load in route.loads():
            [placed] = wiring.at(node, [link])
            loads[placed.name] = loads.get(placed.name, 0.0) + load
            capacities[placed.name] = placed.link.bandwidth
    return Demand(latency_s, copy.size_bytes, loads, weight=len(here)), capacities


def copies_alone(env: simpy.Environment, placement: Placement | None, slot_Bps: float) -> CopyBetween:  # noqa: N803
    """Return what copies between the devices of one rank that has its machine to itself.

    Args:
        placement: of it; None is a machine that is not known, where the GPUs of a rank are in slots of their own.
        slot_Bps: of such a slot.
    """

    def copy(asked: PeerCopy) -> simpy.Event:
        if placement is None:
            return env.timeout(asked.size_bytes / slot_Bps)
        return env.timeout(alone_s(*peer_demand(placement, (0,), asked)))

    return copy
