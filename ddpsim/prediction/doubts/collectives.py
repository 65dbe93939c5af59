"""How far off the time of a collective is: by the machine's own measurements, else by its family of transports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddpsim.collectives.bands import Band, band_factors
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import GPU_BACKENDS, CollectiveOptions
from ddpsim.collectives.execute import find_correcting_curve, layout_of, make_transport
from ddpsim.collectives.nccl.layout import join_by_nvlink
from ddpsim.collectives.nccl.loads import HOST, NVSWITCH, PCIE, XGMI
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.collectives.transport import Transport
from ddpsim.common.operation import Operation
from ddpsim.prediction.doubts.spreads import DOMAIN, Spread, find_collective_spread
from ddpsim.topology.graph import Placement
from ddpsim.topology.hardware import nic_kind

THROUGH_HOST, TCP = "PCIe through host memory", "TCP"
RACK = "NVLink domain"
"""The family of nodes that NCCL joins to one, and of several such."""

Factors = tuple[float, float]


def family(placement: Placement, backend: str) -> str:
    """Return by which transports a placement's ranks talk, the one that its errors go with.

    A key of `COLLECTIVES`, or `RACK` where NCCL joins nodes of an NVLink domain.
    Between nodes the card's, or host memory where cards do not reach the GPUs' own; inside a node the slowest.
    """
    if backend not in GPU_BACKENDS:
        return TCP
    layout = layout_of(placement, CURRENT, expand=False)
    groups = layout.ring.rates
    if layout.nodes < placement.nodes:
        return RACK
    if layout.nodes > 1:
        names = {nic_kind(nic.kind).family for each in placement.classes for nic in each.template.nics}
        return TCP if TCP in names else THROUGH_HOST if HOST in groups else min(names)
    if HOST in groups:
        return THROUGH_HOST
    if XGMI in groups:
        return "xGMI"
    return "NVSwitch" if NVSWITCH in groups else "PCIe peer-to-peer" if PCIE in groups else "NVLink"


def spread(name: str, transport: Transport, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> Spread:
    """Return the spread of an operation of `size_bytes` in family `name`, by what bounds it."""
    if name == RACK:
        return DOMAIN
    return find_collective_spread(name, latency_share(transport, size_bytes, operation))


def latency_share(transport: Transport, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> float:
    """Return the share of an operation's time that does not grow with its bytes."""
    demand, time_s = transport.demand(operation, size_bytes), transport.time_s(operation, size_bytes)
    return (demand.latency_s + demand.stall_s) / time_s if time_s > 0 else 1.0


def factors(
    placement: Placement,
    backend: str,
    calibration: Calibration | None,
    sizes: Sequence[int],
    algorithm: str = "auto",
    operation: Operation = Operation.ALLREDUCE,
    *,
    transport: Transport | None = None,
) -> list[Factors]:
    """Return by size the factors from the predicted time of an operation to the ends of its 80 % band.

    Three cases: a calibration measured the transports in use, and its own covariance and residuals are the band; it
    measured others, as one node of a job of several, and its band is joined with the family's spread in quadrature of
    logarithms; it measured none, and the family's spread is the band.

    Args:
        transport: the one whose times are banded; made here where None, which takes seconds for 256 ranks.
    """
    if placement.world_size == 1:
        return [(1.0, 1.0)] * len(sizes)
    measured = calibration is not None and calibration.measured_transport
    known = calibration if measured else None
    own = None if known is None else band_factors(placement, known, sizes, algorithm=algorithm, operation=operation)
    if own is not None and covers(calibration, placement, backend, algorithm):
        return own
    name = family(placement, backend)
    if transport is None:
        options = CollectiveOptions(algorithm=algorithm, isolated=False)
        transport = make_transport(placement, backend, calibration, options)
    spreads = [spread(name, transport, max(size, 1), operation) for size in sizes]
    return [
        (
            math.exp(-math.hypot(each.low, math.log(low))),
            math.exp(math.hypot(each.high, math.log(high))),
        )
        for each, (low, high) in zip(spreads, own or [(1.0, 1.0)] * len(sizes), strict=True)
    ]


def covers(calibration: Calibration | None, placement: Placement, backend: str, algorithm: str = "auto") -> bool:
    """Whether a calibration measured the transports that a placement uses.

    One made inside a node says nothing of the network between several.
    """
    if calibration is None or not calibration.measured_transport:
        return False
    # Between nodes the network must be among what was measured: by a curve of these ranks, or a fitted constant of it.
    if (
        join_by_nvlink(placement, CURRENT).nodes == 1
        or backend not in GPU_BACKENDS
        or find_correcting_curve(placement, backend, calibration, algorithm)
    ):
        return True
    names = calibration.fitted_names
    return not names or any({"net", "nic"} & set(name.split(".")) for name in names)


def band(
    placement: Placement, backend: str, calibration: Calibration | None, sizes: Sequence[int], algorithm: str
) -> Band:
    """Return the factors of `sizes` as a band, which interpolates them for any other size."""
    distinct = sorted({max(size, 1) for size in sizes})
    return Band(dict(zip(distinct, factors(placement, backend, calibration, distinct, algorithm), strict=True)))
