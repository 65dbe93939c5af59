"""What carries the messages of a model in stages: those of the ranks of one place in all copies, and between stages.

Ranks of each place have their own groups, and stages send each other. The collectives of a place are run on the GPUs
that its ranks have in a node. Where a copy lies in one node, all messages share its links. Where it spans several, the
collectives of places on one node of a copy share theirs, and what goes from stage to stage shares them among itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import simpy

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.network.fluid import Network
from ddpsim.collectives.point_to_point import PointToPoint
from ddpsim.collectives.transport import RankPaths, Transport
from ddpsim.schedules.mesh import DATA, SENDS, TENSOR, stage_of_group
from ddpsim.schedules.schedule import Lane
from ddpsim.simulation.jobs.pipeline import Pipeline
from ddpsim.simulation.lanes import LaneGroup, SharedNetwork, part_of, share_of_together
from ddpsim.topology.graph import Placement
from ddpsim.topology.placement import place


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


_BETWEEN = -1
"""The network of what goes from stage to stage on other nodes, among those of nodes."""


@dataclass(slots=True)
class StageLinks:
    """Makes what carries the messages of each lane.

    Attributes:
        placement: of all ranks.
        given: the pipeline.
        tensor: ranks that share each layer of a stage.
        ways: between ranks.
        make: the collectives of a part of the machine, each of which takes some share of its time.
        over: the collectives of a transport.
    """

    env: simpy.Environment
    placement: Placement
    given: Pipeline
    tensor: int
    ways: RankPaths
    make: Callable[[Placement, SharedNetwork, float], Collectives]
    over: Callable[[Transport, SharedNetwork], Collectives]
    _networks: dict[int, Network] = field(init=False, default_factory=dict)

    def lanes(self, lanes: Sequence[Lane]) -> list[LaneGroup]:
        """Return what carries the messages of the lanes of all ranks."""
        groups: dict[Lane, LaneGroup] = {}
        for group, stream in lanes:
            name, number = stage_of_group(group)
            key = (group, stream if name == SENDS else "")
            if key not in groups:
                groups[key] = self._sends(number, stream) if name == SENDS else self._groups(name, number)
        return [groups[group, stream if group.startswith(SENDS) else ""] for group, stream in lanes]

    def _groups(self, name: str, place: int) -> LaneGroup:
        """Return the collectives of the groups `name` of a place, with their ranks and how many they stand for."""
        tensor, ranks = self.tensor, self._ranks(place)
        if name == TENSOR:
            part, together, count, share = *part_of(self.placement, TENSOR, tensor), tensor, 1.0
        else:
            count = len(ranks) // tensor
            part, together = part_of_place(self.placement, ranks, tensor)
            share = share_of_together(count, part)
        network = self._network(ranks[0] // self.placement.gpus_per_node)
        return LaneGroup(self.make(part, SharedNetwork(network, (name, place, share)), share), count, together)

    def _sends(self, stage: int, kind: str) -> LaneGroup:
        """Return what carries that which a stage sends to the next, or back to the one before."""
        places, each = self.given.stages, self.placement.gpus_per_node
        target = stage + 1 if kind == "forward" else stage - 1
        pairs = list(zip(self._ranks(stage % places), self._ranks(target % places), strict=True))
        nodes = {rank // each for rank in pairs[0]}
        # Copies on other nodes put as much on links of their own.
        near = [pair for pair in pairs if not nodes.isdisjoint(rank // each for rank in pair)]
        network = self._network(0 if self._is_in_node else _BETWEEN)
        return LaneGroup(self.over(PointToPoint(self.ways, near), SharedNetwork(network, (SENDS, stage, kind))), 2)

    @property
    def _is_in_node(self) -> bool:
        """Whether a copy lies in one node."""
        each, copy = self.placement.gpus_per_node, self.given.stages * self.tensor
        return self.placement.nodes == 1 or (self.given.mapping == "tp-pp-dp" and copy <= each)

    def _ranks(self, place: int) -> list[int]:
        world = self.placement.world_size
        return [rank for rank in range(world) if self.given.place_of(rank, world, self.tensor) == place]

    def _network(self, node: int) -> Network:
        return self._networks.setdefault(node, Network(self.env, {}))
