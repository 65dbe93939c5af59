"""Ways through a placement as link names, with nodes that are alike represented once.

Alike nodes carry the same traffic in a pattern over all of them, so the links of one node of each class stand for all,
and so does one node boundary of each kind (which classes meet, whether it crosses a trunk of the fabric).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ddpsim.collectives.network.fairness import LinkId
from ddpsim.topology.graph import NETWORK, Link, NodeTemplate, Placement

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PlacedLink:
    """A placed link belongs to a certain node, or to the fabric."""

    name: LinkId
    link: Link


@dataclass(frozen=True, slots=True)
class PlacementLinks:
    """Knows the links of a placement, and what each carries.

    Attributes:
        expand: give every node links of its own instead of its representative's.
        nodes: the nodes that have links: one of each class, or all.
        boundaries: (node, next node) of each kind, or all; the last node's next is the first.
    """

    placement: Placement
    expand: bool = False
    nodes: tuple[int, ...] = field(init=False)
    boundaries: tuple[tuple[int, int], ...] = field(init=False)
    _representative: tuple[int, ...] = field(init=False, repr=False)
    _ends: dict[int, dict[tuple[str, str], Link]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        own = [0] * self.placement.nodes
        for each in self.placement.classes:
            for node in each.node_indices:
                own[node] = node if self.expand else each.node_indices[0]
        object.__setattr__(self, "_representative", tuple(own))
        object.__setattr__(self, "nodes", tuple(dict.fromkeys(own)))
        object.__setattr__(self, "boundaries", tuple(self._boundaries()))

    @property
    def uniform(self) -> bool:
        """Whether one node, and one boundary, stand for all."""
        return len(self.nodes) == 1 and len(self.boundaries) <= 1

    def template(self, node: int) -> NodeTemplate:
        """Return the template of `node`, degraded links as they are."""
        return self.placement.class_of(node).template

    def at(self, node: int, links: Iterable[Link]) -> tuple[PlacedLink, ...]:
        """Return `links` of the template of `node` as links of the node that stands for it."""
        number = self.placement.topology.fabric.number(self._representative[node])
        return tuple(PlacedLink(f"node{number}/{link.name}", link) for link in links)

    def between(self, source: int, source_nic: str, target: int, target_nic: str) -> tuple[PlacedLink, ...]:
        """Return the way from NIC to NIC: a port out, trunks of the fabric, a port in."""
        out, into = self.port_out(source, source_nic), self.port_in(target, target_nic)
        return (out, *self.trunks(source, source_nic, target, target_nic), into)

    def trunks(self, source: int, source_nic: str, target: int, target_nic: str) -> tuple[PlacedLink, ...]:
        """Return the fabric's links between the switches of two NICs."""
        links = self.placement.trunk_route((source, source_nic), (target, target_nic))
        return tuple(PlacedLink(link.name, link) for link in links)

    def port_out(self, node: int, nic: str) -> PlacedLink:
        """Return the link from a NIC into the network."""
        return self.at(node, [self._link(node, nic, NETWORK)])[0]

    def port_in(self, node: int, nic: str) -> PlacedLink:
        """Return the link from the network to a NIC."""
        return self.at(node, [self._link(node, NETWORK, nic)])[0]

    def _link(self, node: int, source: str, target: str) -> Link:
        """Return the link of the template of `node` between two ends; each template's are looked through once."""
        template = self.template(node)
        if id(template) not in self._ends:
            self._ends[id(template)] = {(link.source, link.target): link for link in reversed(template.links)}
        return self._ends[id(template)][source, target]

    def _boundaries(self) -> Iterable[tuple[int, int]]:
        count = self.placement.nodes
        pairs = [(node, (node + 1) % count) for node in range(count)] if count > 1 else []
        leaf = self.placement.topology.fabric.leaf
        kinds: dict[object, tuple[int, int]] = {}
        for source, target in pairs:
            crossing = leaf(source, 0) != leaf(target, 0)
            kinds.setdefault((self._representative[source], self._representative[target], crossing), (source, target))
        return kinds.values()


def total_by_key(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the sum of the numbers of each key, in the order in which keys come first.

    >>> total_by_key([("a", 1.0), ("b", 2.0), ("a", 0.5)])
    {'a': 1.5, 'b': 2.0}
    """
    total: dict[Key, float] = {}
    for key, number in pairs:
        total[key] = total.get(key, 0.0) + number
    return total
