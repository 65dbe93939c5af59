"""NCCL's own cost model: what it believes each algorithm and protocol costs, by which it picks one.

Source: NCCL 2.30 `src/graph/tuning.cc` (`ncclTopoTuneModel`, `ncclTopoGetAlgoTime`), and the 2.8 line's where an older
version is named. It selects; it does not predict well. Times inside are microseconds, bandwidths GB/s, as there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

RING, TREE, NVLS, NVLS_TREE = "ring", "tree", "nvls", "nvls_tree"
LL, LL128, SIMPLE = "ll", "ll128", "simple"
PROTOCOLS = (LL, LL128, SIMPLE)

CURRENT = 2030
OLD = 2012
"""Versions as major * 1000 + minor; up to and with OLD the constants of 2.8 hold."""


@dataclass(frozen=True, slots=True)
class InSwitch:
    """Channels of an in-switch reduction: how many, GB/s of one inside the node and at the NIC."""

    channels: int
    inside: float
    across: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What NCCL's model looks at.

    Attributes:
        ranks, nodes: p and n.
        channels: C; of the rings.
        channel_bandwidth: GB/s of one of them.
        tree_bandwidth: GB/s of one tree channel inside the node.
        sm: compute capability of the slowest GPU, 70 for 7.0.
        nvlink: whether hops inside a node are by NVLink.
        nic_latency_us: the card's, from its plugin or XML, where NCCL asks for it (2.13 and later).
        amd: whether all hosts are AMD's.
        mixed: whether hosts are of several vendors.
        ll128: whether paths allow LL128.
        simple_only: whether the network's plugin rules out the other protocols.
        nvls: what the node's switch reduces by; None where it does not.
        x86: whether hosts are Intel's or AMD's.
        version: as major * 1000 + minor.
    """

    ranks: int
    nodes: int
    channels: int
    channel_bandwidth: float
    tree_bandwidth: float
    sm: int
    nvlink: bool
    nic_latency_us: float = 0.0
    amd: bool = False
    mixed: bool = False
    ll128: bool = True
    simple_only: bool = False
    nvls: InSwitch | None = None
    x86: bool = True
    version: int = CURRENT

    @property
    def per_node(self) -> int:
        """Ranks a node."""
        return self.ranks // self.nodes

    @property
    def old(self) -> bool:
        """Whether the 2.8 line's constants hold."""
        return self.version <= OLD


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of NCCL's table: algorithm, protocol, latency, algorithm bandwidth."""

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth: float


# By generation (0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell), then [one node, two, more].
_PER_CHANNEL_TREE = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
_PER_CHANNEL_TREE_LL128 = ((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_PER_CHANNEL_RING_LL128 = (20.0, 20.0, 36.7, 40.0)
_LL_MAX = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (141.0, 45.0, 35.0))
_NVLS_EFFICIENCY = {2: 0.85, 3: 0.74}
_PER_CHANNEL_NVLS_TREE = {2: (0.0, 57.7, 45.5), 3: (0.0, 96.0, 80.0)}

_BASE = {RING: {LL: 6.6, LL128: 14.0, SIMPLE: 8.4}, TREE: {LL: 6.8, LL128: 14.0, SIMPLE: 8.4}}
_BASE_OLD = {RING: {LL: 3.6, LL128: 10.0, SIMPLE: 8.4}, TREE: {LL: 4.4, LL128: 4.4, SIMPLE: 0.0}}
_NVLINK = {RING: {LL: 0.6, LL128: 1.9, SIMPLE: 3.4}, TREE: {LL: 0.6, LL128: 1.25, SIMPLE: 4.0}}
_NVLINK_OLD = {RING: {LL: 0.47, LL128: 1.9, SIMPLE: 3.4}, TREE: {LL: 0.52, LL128: 1.25, SIMPLE: 28.0}}
_PCI = {RING: {LL: 1.0, LL128: 2.5, SIMPLE: 5.7}, TREE: {LL: 1.0, LL128: 1.9, SIMPLE: 4.0}}
_PCI_OLD = {RING: {LL: 1.0, LL128: 2.5, SIMPLE: 5.7}, TREE: {LL: 1.0, LL128: 1.9, SIMPLE: 28.0}}
_NET = {RING: {LL: 2.7, LL128: 4.0, SIMPLE: 14.0}, TREE: {LL: 5.0, LL128: 8.5, SIMPLE: 14.0}}
_NET_OLD = {RING: {LL: 2.7, LL128: 4.0, SIMPLE: 9.6}, TREE: {LL: 5.0, LL128: 8.5, SIMPLE: 28.0}}
_NVLS_US = 25.0
_NVLS_TREE_NET_US = 20.9

# Correction of a tree's bandwidth by floor(log2(bytes / 64)).
_TREE_FACTOR = {
    LL: (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1),
    LL128: (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *(0.6,) * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1),
    SIMPLE: (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}


_TUNED_FROM = 2005
_OLD_LL_BYTES = 16384
"""Before 2.5 there was no model: LL up to 16 KiB a rank (NCCL_LL_THRESHOLD), trees between nodes only."""


def generation(sm: int) -> int:
    """Return 0 to 3 for Volta (and older), Ampere, Hopper, Blackwell."""
    return 0 if sm < 80 else 1 if sm < 90 else 2 if sm < 100 else 3


@lru_cache(maxsize=256)
def table(shape: Shape) -> tuple[Entry, ...]:
    """Return every algorithm and protocol NCCL may use on `shape`, with what it believes of each."""
    return tuple(_entries(shape))


def time_us(entry: Entry, shape: Shape, size_bytes: int) -> float:
    """Return what NCCL believes an allreduce of `size_bytes` takes by `entry`."""
    if shape.version < _TUNED_FROM and (entry.protocol == LL) != (size_bytes <= _OLD_LL_BYTES * shape.ranks):
        return math.inf
    bandwidth, latency_us = entry.bandwidth, entry.latency_us
    if entry.algorithm == TREE or (entry.algorithm == NVLS_TREE and shape.sm >= 100 and shape.x86):
        factors = _TREE_FACTOR[entry.protocol]
        place = int(math.log2(max(size_bytes >> 6, 1)))
        bandwidth *= factors[place] if place < len(factors) else 1.0
    many_bytes = size_bytes / (shape.channels * shape.ranks) >= 64
    if (entry.algorithm, entry.protocol) == (RING, SIMPLE) and shape.nodes > 1 and many_bytes:
        latency_us *= 1.9 if shape.sm < 80 else 1.4
    return latency_us + size_bytes / (1000 * bandwidth)


def best(shape: Shape, size_bytes: int, algorithm: str | None = None) -> Entry:
    """Return the entry NCCL picks, among those of `algorithm` where one is forced."""
    entries = [entry for entry in table(shape) if algorithm in (None, entry.algorithm)]
    return min(entries, key=lambda entry: time_us(entry, shape, size_bytes))


def _entries(shape: Shape) -> Iterator[Entry]:
    for protocol in PROTOCOLS:
        if (protocol == LL128 and not shape.ll128) or (protocol != SIMPLE and shape.simple_only):
            continue
        yield Entry(RING, protocol, _ring_latency_us(shape, protocol), _ring_bandwidth(shape, protocol))
        if shape.ranks > 1 and (shape.version >= _TUNED_FROM or (shape.version == 2004 and shape.nodes > 1)):
            yield Entry(TREE, protocol, _tree_latency_us(shape, protocol), _tree_bandwidth(shape, protocol))
    if shape.nvls is not None and shape.nodes == 1:
        yield Entry(NVLS, SIMPLE, _NVLS_US, _nvls_bandwidth(shape, shape.nvls))
    if shape.nvls is not None and shape.nodes > 1:
        net_us = _NVLS_TREE_NET_US + 2 * shape.nic_latency_us
        latency_us = _NVLS_US + 2 * math.floor(math.log2(shape.nodes)) * net_us
        yield Entry(NVLS_TREE, SIMPLE, latency_us, _nvls_bandwidth(shape, shape.nvls))


def _index(shape: Shape) -> int:
    return min(shape.nodes, 3) - 1


def ll_max(shape: Shape) -> float:
    """Return the bus bandwidth in GB/s beyond which LL does not go: by GPU inside a node, by its host between nodes."""
    row = generation(shape.sm) if shape.nodes == 1 else int(shape.amd or shape.mixed)
    return _LL_MAX[row][_index(shape)]


def _ring_bandwidth(shape: Shape, protocol: str) -> float:
    total = shape.channels * shape.channel_bandwidth
    if protocol == LL:
        total = min(ll_max(shape), total / (4 if shape.old else 2))
    if protocol == LL128:
        total = min(0.92 * total, shape.channels * _PER_CHANNEL_RING_LL128[generation(shape.sm)])
    return total * shape.ranks / (2 * (shape.ranks - 1)) if shape.ranks > 1 else total


def _tree_bandwidth(shape: Shape, protocol: str) -> float:
    gen, index = generation(shape.sm), _index(shape)
    # NCCL takes the bandwidth inside the node where there are two; measured tables there are a ring's all the same.
    channel = shape.tree_bandwidth if shape.nodes == 1 else shape.channel_bandwidth
    total = min(0.92 * shape.channels * channel, shape.channels * _PER_CHANNEL_TREE[gen][index])
    if shape.per_node == 1:
        total *= 0.85
    if protocol == LL:
        total = min(total / 3.8, ll_max(shape))
    if protocol == LL128:
        part = 7 / 9 if shape.nodes == 1 else 120 / 128
        total = min(total * part, shape.channels * _PER_CHANNEL_TREE_LL128[gen][index])
    return total / 2


def _nvls_bandwidth(shape: Shape, graph: InSwitch) -> float:
    gen, count = generation(shape.sm), graph.channels
    inside = graph.inside * _NVLS_EFFICIENCY[gen] * (count - 1) / count * 2
    limits = [inside, graph.across * (2 if shape.nodes == 2 else 1)]
    if shape.nodes > 1:
        limits.append(_PER_CHANNEL_NVLS_TREE[gen][_index(shape)])
    return count * min(limits) * shape.ranks / (2 * (shape.ranks - 1))


def _hop_us(shape: Shape, algorithm: str, protocol: str) -> float:
    tables = (_NVLINK_OLD, _PCI_OLD) if shape.old else (_NVLINK, _PCI)
    return tables[0 if shape.nvlink else 1][algorithm][protocol]


def _net_us(shape: Shape, algorithm: str, protocol: str) -> float:
    net = (_NET_OLD if shape.old else _NET)[algorithm][protocol]
    return net + shape.nic_latency_us * (2 if protocol == SIMPLE else 1)


def _ring_latency_us(shape: Shape, protocol: str) -> float:
    base = (_BASE_OLD if shape.old else _BASE)[RING][protocol]
    inter_steps = 2 * (shape.nodes - 1)
    overhead = 0.0 if shape.nodes == 1 else (2.0 if shape.amd else 1.0) * (3 if protocol == SIMPLE else 1)
    intra = max(_hop_us(shape, RING, protocol), overhead)
    steps = 2 * (shape.ranks - 1) - inter_steps
    # With one rank a node nothing hides the network's latency.
    exposed = TREE if shape.per_node == 1 and not shape.old else RING
    return base + steps * intra + inter_steps * _net_us(shape, exposed, protocol)


def _tree_latency_us(shape: Shape, protocol: str) -> float:
    base = (_BASE_OLD if shape.old else _BASE)[TREE][protocol]
    intra = (shape.per_node - 1) * _hop_us(shape, TREE, protocol)
    return base + 2 * (intra + math.floor(math.log2(shape.nodes)) * _net_us(shape, TREE, protocol))
