"""A cluster that ranks can be put on, and its graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpsim.topology.declared import Cluster, move_to_node, port_link, rejoin
from ddpsim.topology.node import Link, VertexKind
from ddpsim.topology.placement import Placement, place

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, repr=False)
class Topology(Cluster):
    """A cluster as its file, or an importer, declares it: ranks can be put on it, and its graph be drawn."""

    def place(self, nodes: int | None = None, gpus_per_node: int | None = None) -> Placement:
        """Put one rank on each of the first `gpus_per_node` visible GPUs of the first `nodes` nodes.

        Args:
            nodes: the declared number where None.
            gpus_per_node: the declared number where None, else all visible GPUs of a node; of the node with fewest,
                where templates differ.

        Raises:
            TopologyError: more nodes or GPUs than there are, or several nodes without a network between them.
        """
        return place(self, nodes, gpus_per_node)

    def graph(self, nodes: int | None = None) -> nx.DiGraph:
        """Return every node and the fabric as one networkx graph; vertices `node3/gpu0`, `leaf0`, `spine0`.

        For drawing and inspection: its size grows with the nodes, the simulation does not use it.
        """
        import networkx as nx

        graph = nx.DiGraph()
        for link in self._expand(self.nodes if nodes is None else nodes):
            graph.add_edge(link.source, link.target, link=link)
            for vertex in link.ends():
                graph.nodes[vertex.name]["kind"] = vertex.kind
        return graph

    def _expand(self, nodes: int) -> Iterator[Link]:
        placement = self.place(nodes)
        for node in range(nodes):
            template = placement.class_of(node).template
            leaves = self.fabric.leaves(node, template)
            for link in template.links:
                if not link.at(VertexKind.NETWORK):
                    yield rejoin(link, *(move_to_node(vertex, node) for vertex in link.ends()))
                elif self.fabric.kind != "none":
                    yield port_link(link, node, leaves)
        yield from self.trunks(nodes).values()
