"""NCCL's own cost model: what it believes each algorithm and protocol costs, by which it picks one.

Source: NCCL's `src/graph/tuning.cc` (`ncclTopoTuneModel`, `ncclTopoGetAlgoTime`); `versions` has the constants.
It selects; it does not predict well. Times inside are microseconds, bandwidths GB/s, as there. On AMD's GPUs it is
RCCL's, of the same structure with other figures (`rccl`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from ddpsim.collectives.nccl import rccl
from ddpsim.collectives.nccl.shape import InSwitch, Shape, TuningEntry
from ddpsim.collectives.nccl.versions import (
    CURRENT,
    LL,
    LL128,
    NVLS,
    NVLS_TREE,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
    Release,
    release,
)

# By generation (0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell), then [one node, two, more].
_LL_MAX = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (141.0, 45.0, 35.0))
_NVLS_EFFICIENCY = {2: 0.85, 3: 0.74}
# Microseconds of a hop between nodes, in releases with figures for such trees of their own, and before.
_NVLS_TREE_NET_US, _NVLS_TREE_NET_OLD_US = 20.9, 14.0

_TREES_FROM, _TUNED_FROM = 2004, 2005
"""The first release that had trees, by a threshold in bytes, and the first that chose by a model."""
_OLD_LL_BYTES = 16384
"""Before 2.5 there was no model: LL up to 16 KiB a rank (NCCL_LL_THRESHOLD), trees between nodes only."""
_RULED_OUT = 1e6
"""Factor on what NCCL 2.4 does not run at a size; finite, so that an algorithm that is forced has a time."""
_OLD_TREE_US, _OLD_RING_US, _OLD_INSIDE_US, _OLD_CHANNEL_BPUS = 15.0, 6.0, 4.0, 5000.0
"""Of `ncclTreeThreshold` in NCCL 2.4's `src/init.cc`: a tree's hop between nodes, a ring's hop, a tree's hop inside a
node, bytes a microsecond of a channel by NVLink, or of all without."""


def generation(sm: int) -> int:
    """Return 0 to 3 for Volta (and older), Ampere, Hopper, Blackwell."""
    return 0 if sm < 80 else 1 if sm < 90 else 2 if sm < 100 else 3


@lru_cache(maxsize=256)
def table(shape: Shape) -> tuple[TuningEntry, ...]:
    """Return every algorithm and protocol NCCL may use on `shape`, with what it believes of each."""
    return tuple(rccl.entries(shape) if shape.gcn else _entries(shape))


def time_us(entry: TuningEntry, shape: Shape, size_bytes: int) -> float:
    """Return what NCCL believes an allreduce of `size_bytes` takes by `entry`."""
    if shape.gcn:
        return rccl.time_us(entry, shape, size_bytes)
    if shape.version < _TUNED_FROM and (entry.protocol == LL) != (size_bytes <= _OLD_LL_BYTES * shape.ranks):
        return math.inf
    if shape.version == _TREES_FROM and (entry.algorithm == TREE) != (size_bytes <= tree_threshold(shape)):
        return _RULED_OUT * (entry.latency_us + size_bytes / (1000 * entry.bandwidth))
    bandwidth, latency_us = entry.bandwidth, entry.latency_us
    blackwell_tree = entry.algorithm == NVLS_TREE and shape.sm >= 100 and shape.x86
    if entry.algorithm == TREE or blackwell_tree:
        factors = release(shape.version).correction[entry.protocol]
        place = int(math.log2(max(size_bytes >> 6, 1)))
        bandwidth *= factors[place] if place < len(factors) else 1.0
    if (entry.algorithm, entry.protocol) == (RING, SIMPLE) and shape.nodes > 1:
        latency_us *= _plateau(shape, size_bytes)
    return latency_us + size_bytes / (1000 * bandwidth)


def tree_threshold(shape: Shape) -> float:
    """Return the bytes up to which NCCL 2.4 runs an allreduce by trees, not by rings.

    A tree's bandwidth counts as 2/3 of a ring's, by NVLink as 3/4, and twice that on two nodes; a ring found is two
    channels. Source: `ncclTreeThreshold` in NCCL 2.4's `src/init.cc`.
    """
    if shape.nodes == 1:
        return 0.0
    ring_us = _OLD_RING_US * (shape.ranks - 1)
    tree_us = _OLD_TREE_US * (shape.nodes.bit_length() - 1) + _OLD_INSIDE_US * (shape.per_node - 1)
    if ring_us <= tree_us:
        return 0.0
    share = 3 / 4 * (2 if shape.nodes == 2 else 1) if shape.nvlink else 2 / 3
    ring = _OLD_CHANNEL_BPUS * (2 * shape.channels if shape.nvlink else 1)
    return math.inf if share > 1 else ring * share / (1 - share) * (ring_us - tree_us)


def best(shape: Shape, size_bytes: int, algorithm: str | None = None) -> TuningEntry:
    """Return the entry NCCL picks, among those of `algorithm` where one is forced."""
    entries = [entry for entry in table(shape) if algorithm in (None, entry.algorithm)]
    return min(entries, key=lambda entry: time_us(entry, shape, size_bytes))


def ll_max(shape: Shape) -> float:
    """Return the bus bandwidth in GB/s beyond which LL does not go: by GPU inside a node, by its host between nodes."""
    row = generation(shape.sm) if shape.nodes == 1 else int(shape.amd or shape.mixed)
    return _LL_MAX[row][_index(shape)]


def tree_max(shape: Shape, protocol: str) -> float:
    """Return the bus bandwidth in GB/s beyond which trees do not go by Simple or LL128: a most for each channel.

    By GPU and nodes, perChMaxTreeBws and perChMaxTreeLL128Bws of the newest release whatever the version: machines do
    not change with what a release knows of them.
    """
    known, place = release(CURRENT), (generation(shape.sm), _index(shape))
    tables = (known.tree, known.tree_ll128) if protocol == LL128 else (known.tree,)
    return shape.channels * min(each[place[0]][place[1]] for each in tables)


def _plateau(shape: Shape, size_bytes: int) -> float:
    """Return by how much longer a Simple ring's latency between nodes is at this size."""
    part_bytes = release(shape.version).plateau_bytes
    if part_bytes is None:
        return 1.9 if size_bytes >= 4096 * shape.ranks else 1.0
    if size_bytes < part_bytes * shape.channels * shape.ranks:
        return 1.0
    return 1.9 if shape.sm < 80 else 1.4


def _entries(shape: Shape) -> Iterator[TuningEntry]:
    known = release(shape.version)
    for protocol in PROTOCOLS:
        if (protocol == LL128 and not shape.ll128) or (protocol != SIMPLE and shape.simple_only):
            continue
        yield TuningEntry(
            RING, protocol, _ring_latency_us(known, shape, protocol), ring_bandwidth(known, shape, protocol)
        )
        if shape.ranks > 1 and (shape.version >= _TUNED_FROM or (shape.version == _TREES_FROM and shape.nodes > 1)):
            latency_us, bandwidth = _tree_latency_us(known, shape, protocol), _tree_bandwidth(known, shape, protocol)
            yield TuningEntry(TREE, protocol, latency_us, bandwidth)
    if shape.nvls is not None and shape.nodes == 1:
        yield TuningEntry(NVLS, SIMPLE, known.nvls_us, _nvls_bandwidth(known, shape, shape.nvls))
    if shape.nvls is not None and shape.nodes > 1:
        hop_us = _NVLS_TREE_NET_OLD_US if known.nvls_tree is None else _NVLS_TREE_NET_US
        latency_us = known.nvls_us + 2 * math.floor(math.log2(shape.nodes)) * (hop_us + 2 * shape.nic_latency_us)
        yield TuningEntry(NVLS_TREE, SIMPLE, latency_us, _nvls_tree_bandwidth(known, shape, shape.nvls))


def _index(shape: Shape) -> int:
    return min(shape.nodes, 3) - 1


def _total(known: Release, shape: Shape, channel: float) -> float:
    """Return the bandwidth of all channels."""
    total = shape.channels * channel
    limited = known.ampere_total is not None and generation(shape.sm) == 1
    return min(total, known.ampere_total) if limited and known.ampere_total else total


def bus_share(shape: Shape) -> float:
    """Return the algorithm bandwidth of a ring for each GB/s of bus bandwidth."""
    return shape.ranks / (2 * (shape.ranks - 1)) if shape.ranks > 1 else 1.0


def ring_bandwidth(known: Release, shape: Shape, protocol: str) -> float:
    """Return the algorithm bandwidth in GB/s that NCCL believes a ring has."""
    total = _total(known, shape, shape.channel_bandwidth)
    if protocol == LL:
        total = min(_ll_limit(known, shape), total * known.ll_share)
    if protocol == LL128:
        total = min(0.92 * total, shape.channels * known.ring_ll128[generation(shape.sm)])
    return total * bus_share(shape)


def _ll_limit(known: Release, shape: Shape) -> float:
    return ll_max(shape) if known.ll_limited else math.inf


def _tree_bandwidth(known: Release, shape: Shape, protocol: str) -> float:
    gen, index = generation(shape.sm), _index(shape)
    total = _total(known, shape, shape.tree_bandwidth if shape.nodes <= 2 else shape.channel_bandwidth)
    total = min(known.tree_share * total, shape.channels * known.tree[gen][index], _tree_total(known, shape, protocol))
    if known.overhead and shape.per_node == 1:
        total *= 0.85
    if protocol == LL:
        total = min(total / 3.8, _ll_limit(known, shape))
    if protocol == LL128:
        part = 7 / 9 if shape.nodes == 1 else known.tree_far_ll128
        total = min(total * part, shape.channels * known.tree_ll128[gen][index])
    return total / 2


def _tree_total(known: Release, shape: Shape, protocol: str) -> float:
    if known.tree_total is None:
        return math.inf
    ampere_ll128 = protocol == LL128 and generation(shape.sm) == 1
    return known.tree_total[(2 if ampere_ll128 else 0) + (shape.nodes > 2)]


def _nvls_bandwidth(known: Release, shape: Shape, graph: InSwitch) -> float:
    """Return NVLS' algorithm bandwidth: from 2.23 on of two operations in flight over all but one channel's switch."""
    if known.nvls_tree is None:
        return graph.channels * min(graph.inside, graph.across) * 5 / 6
    return graph.channels * min(_switch_bandwidth(shape, graph), graph.across) * bus_share(shape)


def _nvls_tree_bandwidth(known: Release, shape: Shape, graph: InSwitch) -> float:
    if known.nvls_tree is None:
        return graph.channels * min(graph.inside, graph.across if shape.nodes <= 2 else graph.across / 2) * 5 / 6
    limit = known.nvls_tree[min(generation(shape.sm), 3)][_index(shape)]
    across = graph.across * (2 if shape.nodes <= 2 else 1)
    return graph.channels * min(_switch_bandwidth(shape, graph), across, limit) * bus_share(shape)


def _switch_bandwidth(shape: Shape, graph: InSwitch) -> float:
    efficiency = _NVLS_EFFICIENCY[min(generation(shape.sm), 3)]
    return graph.inside * efficiency * (graph.channels - 1) / graph.channels * 2


def _hop_us(known: Release, shape: Shape, algorithm: str, protocol: str) -> float:
    hop_us = (known.nvlink if shape.nvlink else known.pci)[algorithm][protocol]
    return hop_us * known.far_ll if protocol == LL and shape.nodes > 1 else hop_us


def _net_us(known: Release, shape: Shape, algorithm: str, protocol: str) -> float:
    return known.net[algorithm][protocol] + shape.nic_latency_us * (2 if protocol == SIMPLE else 1)


def _ring_latency_us(known: Release, shape: Shape, protocol: str) -> float:
    outer = 0 if shape.nodes == 1 else 2 * (shape.nodes - 1) + known.closing
    inner_us = _hop_us(known, shape, RING, protocol)
    if known.overhead and shape.nodes > 1:
        inner_us = max(inner_us, (2.0 if shape.amd else 1.0) * (3 if protocol == SIMPLE else 1))
    inner = max(2 * (shape.ranks - 1) - outer, 0)
    # With one rank a node nothing hides the network's latency.
    exposed = TREE if shape.per_node == 1 and known.exposed else RING
    return known.base[RING][protocol] + inner * inner_us + outer * _net_us(known, shape, exposed, protocol)


def _tree_latency_us(known: Release, shape: Shape, protocol: str) -> float:
    inner_us = (shape.per_node - 1) * _hop_us(known, shape, TREE, protocol)
    outer_us = math.floor(math.log2(shape.nodes)) * _net_us(known, shape, TREE, protocol)
    return known.base[TREE][protocol] + 2 * (inner_us + outer_us)
