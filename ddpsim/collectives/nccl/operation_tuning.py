"""NCCL's own cost model of the operations that are no allreduce: what it believes a ring of each protocol costs.

Source and units are those of `tuning`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ddpsim.collectives.nccl import rccl
from ddpsim.collectives.nccl.shape import Shape, TuningEntry
from ddpsim.collectives.nccl.tuning import bus_share, ring_bandwidth, table
from ddpsim.collectives.nccl.versions import RING, Release, release
from ddpsim.common.operation import Operation


@lru_cache(maxsize=256)
def operation_table(shape: Shape, operation: Operation) -> tuple[TuningEntry, ...]:
    """Return every protocol of a ring that NCCL may run an operation by, other than an allreduce.

    Its bandwidth is p over its steps of its bus bandwidth, where a rooted operation counts p steps. What scatters or
    gathers takes the base latency and half an allreduce's steps, what is rooted one hop's, since channels are alike
    (`sameChannels`). LL on one node has a third of the bandwidth instead of a quarter, except to reduce, up to 2.22.
    Trees run allreduces alone.
    """
    known = release(shape.version)
    if shape.nodes == 1 and operation is not Operation.REDUCE and known.ll_share == 1 / 4:
        known = replace(known, ll_share=1 / 3)
    return tuple(
        TuningEntry(
            RING,
            entry.protocol,
            _operation_latency_us(known, shape, entry, operation),
            _bus_bandwidth(known, shape, entry) / operation.sent(shape.ranks),
        )
        for entry in table(shape)
        if entry.algorithm == RING
    )


def _bus_bandwidth(known: Release, shape: Shape, entry: TuningEntry) -> float:
    believed = entry.bandwidth if shape.gcn else ring_bandwidth(known, shape, entry.protocol)
    return believed / bus_share(shape)


def _operation_latency_us(known: Release, shape: Shape, ring: TuningEntry, operation: Operation) -> float:
    base_us = rccl.BASE_US[ring.protocol] if shape.gcn else known.base[RING][ring.protocol]
    if not operation.rooted:
        return base_us + (ring.latency_us - base_us) / 2
    if shape.gcn:
        return base_us + rccl.hop_us(shape, ring.protocol)
    hop_us = known.net if shape.nodes > 1 else known.nvlink if shape.nvlink else known.pci
    return base_us + hop_us[RING][ring.protocol]
