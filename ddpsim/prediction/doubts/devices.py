"""How much longer a collective takes where a scheduler hands out other GPUs of a node than are taken to be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpsim.collectives.bands import Band
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.topology.far_gpus import farthest_from_nics
from ddpsim.topology.graph import Placement

_MATTERS = 1.02
"""Factor on some collective from which on it matters which GPUs are used: what measured rows repeat to."""


def far_from_nics(
    placement: Placement, calibration: Calibration | None, sizes: Sequence[int], algorithm: str = "auto"
) -> Band | None:
    """Return by size the factor on an allreduce over NCCL where each node's ranks are on its GPUs farthest from a NIC.

    The band's low end is 1. None where a file says which GPUs are visible, all of a node are used, or it does not
    matter. Where bytes to a NIC rest in host memory the farthest cost most: they cross from socket to socket, and NCCL
    may take trees for rings.
    """
    others = farthest_from_nics(placement)
    if others is None:
        return None
    options = CollectiveOptions(algorithm=algorithm, isolated=False)
    constants = None if calibration is None else replace(calibration, curves=())
    near, far = (make_transport(each, "nccl", constants, options) for each in (placement, others))
    asked = sorted({max(size, 1) for size in sizes})
    factors = {size: (1.0, max(far.allreduce_s(size) / near.allreduce_s(size), 1.0)) for size in asked}
    return Band(factors) if any(high > _MATTERS for _, high in factors.values()) else None
