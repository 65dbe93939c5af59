"""The transports between a machine's GPUs, for `ddpsim topo show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpsim.common.errors import list_few
from ddpsim.common.tables import break_line, table_of

if TYPE_CHECKING:
    from ddpsim.collectives.nccl.paths_taken import ChosenPaths
    from ddpsim.topology.graph import Placement, Topology
    from ddpsim.topology.transports import PairTransport

_SHOWN = 2
"""Pairs named before the rest is counted; chosen by hand, for one line."""


def transports_of(machine: Topology, nodes: int | None) -> ChosenPaths | None:
    """Return the transports over `nodes` nodes; where None, over the machine's own, two where one could be many."""
    from ddpsim.collectives.nccl.paths_taken import paths_taken

    return paths_taken(place_several(machine, nodes), every=True)


def place_several(machine: Topology, nodes: int | None = None) -> Placement:
    """Return a rank on each GPU of `nodes` nodes; where None, of the machine's own, two where one could be many."""
    own = 2 if machine.nodes == 1 and machine.elastic else machine.nodes
    return machine.place(own if nodes is None else nodes)


def transports_text(paths: ChosenPaths) -> str:
    """Return the transports of pairs that are alike in a line each, then what they and other choices give."""
    from ddpsim.topology.transports import group_pairs

    rows = [
        {
            "pairs": _pairs(group),
            "transport": group[0].name,
            "route": group[0].kind,
            "pair_bandwidth_Bps": group[0].bandwidth,
            "why not a closer one": group[0].why,
        }
        for group in group_pairs(paths.pairs)
    ]
    return "\n".join([table_of("", rows).text(), *map(break_line, paths.lines())])


def _pairs(group: list[PairTransport]) -> str:
    return list_few([f"{pair.first} - {pair.second}" for pair in group], _SHOWN)
