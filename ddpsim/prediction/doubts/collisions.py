"""How much longer a collective takes where switches hash its few large flows onto the same way to the spine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddpsim.collectives.bands import Band
from ddpsim.collectives.execute import layout_of
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.prediction.doubts.spreads import COLLISIONS
from ddpsim.topology.graph import Placement

_HASHED = {"roce", "tcp", "tcpx", "ethernet", "ena", "gvnic"}
"""Kinds of cards whose switches route each flow by a hash unless a machine's file says otherwise.

InfiniBand and Slingshot route adaptively, and EFA sprays packets over many ways.
"""


def collisions(placement: Placement, sizes: Sequence[int]) -> Band | None:
    """Return by size the factor on a collective where its flows between leaf switches collide; its low end is 1.

    None where none crosses a spine, or where the fabric routes adaptively.
    """
    routing = placement.topology.fabric.routing
    kinds = {nic.kind for each in placement.classes for nic in each.template.nics}
    if placement.nodes == 1 or not placement.trunks or routing == "adaptive":
        return None
    if routing is None and not kinds & _HASHED:
        return None
    if all(load.link.link.kind != "network" for load in layout_of(placement, CURRENT, expand=False).ring.loads):
        return None
    return Band({max(size, 1): (1.0, math.exp(COLLISIONS.high)) for size in sizes})
