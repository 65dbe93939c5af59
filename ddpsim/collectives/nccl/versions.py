"""What NCCL's releases believe: the constants of `src/graph/tuning.cc`, which changed five times.

Sources: that file with 2.8's trees for Ampere (`maxTreeBw` of 130 and 105 for LL128), with limits a channel
(`perChMaxTreeBws` of 22.5 and 16 on Ampere), of 2.12, 2.19 and 2.28; where a release between two of them is meant, the
older holds. Latencies are microseconds, bandwidths GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

RING, TREE, NVLS, NVLS_TREE, ALL_PAIRS = "ring", "tree", "nvls", "nvls_tree", "all_pairs"
LL, LL128, SIMPLE = "ll", "ll128", "simple"
PROTOCOLS = (LL, LL128, SIMPLE)

CURRENT = 2030
OLD = 2008
"""Versions as major * 1000 + minor: the one modelled by default, and one of those before 2.9."""

_FIRST = ((100, 2025), (90, 2015))
"""Compute capability, and the first release that runs on GPUs from it on: H100 by 2.15, B200 by 2.25.

Sources: cupy/cupy#7094 (NCCL 2.15 adds sm90), NCCL 2.25.1's notes in ROCm/rccl#1662 (SM100).
"""

Latencies = Mapping[str, Mapping[str, float]]
"""By algorithm, then by protocol."""

_Scales = tuple[float, float, float]
"""On one node, two, more."""


@dataclass(frozen=True, slots=True)
class Release:
    """The constants that some successive releases share.

    Attributes:
        first: the oldest of them.
        base: latency before the first hop.
        nvlink, pci: of a hop inside a node.
        net: of a hop between nodes.
        far_ll: by what a hop inside a node takes longer by LL where there are several nodes.
        overhead: whether a ring's hops inside a node take the network's posting time at least.
        exposed: whether a ring with one rank a node takes a tree's latency between nodes.
        closing: hops between nodes of a ring beyond 2(n-1).
        ampere_total: most bandwidth of all channels together on Ampere; None without such a limit.
        ll_share: of a ring's bandwidth, by LL.
        ring_ll128: of one channel, by generation of GPUs.
        tree_ll128: the same, by nodes too.
        tree: most bandwidth of a tree's channel.
        tree_total: most of all its channels together on up to two nodes and on more, then the same by LL128 on Ampere;
            None without such limits.
        tree_share: of its channels' bandwidth that a tree has.
        tree_far_ll128: the part of it that LL128 has between nodes.
        ll_limited: whether LL has limits of its own (`llMaxBws`).
        correction: of a tree's bandwidth by floor(log2(bytes / 64)).
        plateau_bytes: of each of a channel's parts, from which on a Simple ring between nodes pays more latency; None
            where it is 4 KiB a rank.
        nvls_us: of NVLS inside a node.
        nvls_tree: most bandwidth of an NVLS tree's channel by generation and nodes; None where the links decide.
    """

    first: int
    base: Latencies
    nvlink: Latencies
    pci: Latencies
    net: Latencies
    far_ll: float
    overhead: bool
    exposed: bool
    closing: int
    ampere_total: float | None
    ll_share: float
    ring_ll128: tuple[float, ...]
    tree_ll128: tuple[_Scales, ...]
    tree: tuple[_Scales, ...]
    tree_total: tuple[float, float, float, float] | None
    tree_share: float
    tree_far_ll128: float
    ll_limited: bool
    correction: Mapping[str, tuple[float, ...]]
    plateau_bytes: int | None
    nvls_us: float
    nvls_tree: Mapping[int, _Scales] | None


def first_version(sm: int) -> int:
    """Return the oldest version that runs on GPUs of compute capability `sm`; 0 where any that is known does."""
    return next((version for least, version in _FIRST if sm >= least), 0)


def release(version: int) -> Release:
    """Return the constants of `version`."""
    return next(each for each in reversed(_RELEASES) if each.first <= version or each is _RELEASES[0])


def _make_latencies(ring: _Scales, tree: _Scales) -> Latencies:
    return {RING: dict(zip(PROTOCOLS, ring, strict=True)), TREE: dict(zip(PROTOCOLS, tree, strict=True))}


# NCCL's `treeCorrectionFactor`, by protocol, which releases lengthen or mend: see `Release.correction`.
_TREE_LL = (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_TREE_SIMPLE = (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9)
_TREE_LL128 = (*(1.0,) * 5, 0.9, 0.8, 0.8, 0.8, 0.7)

_NO_LIMIT = float("inf")
_2_8 = Release(
    first=2005,
    base=_make_latencies(ring=(3.6, 10.0, 8.4), tree=(4.4, 4.4, 0.0)),
    nvlink=_make_latencies(ring=(0.47, 1.9, 3.4), tree=(0.52, 1.25, 28.0)),
    pci=_make_latencies(ring=(1.0, 2.5, 5.7), tree=(1.0, 1.9, 28.0)),
    net=_make_latencies(ring=(2.7, 4.0, 9.6), tree=(5.0, 8.5, 50.0)),
    far_ll=1.8,
    overhead=False,
    exposed=False,
    closing=0,
    ampere_total=235.0,
    ll_share=1 / 4,
    ring_ll128=(16.7,) * 4,
    tree_ll128=((16.7 * 7 / 9,) * 3,) * 4,
    tree=((_NO_LIMIT,) * 3,) * 4,
    tree_total=(110.0, 80.0, 130.0, 105.0),
    tree_share=0.9,
    tree_far_ll128=0.915,
    ll_limited=False,
    correction={
        LL: _TREE_LL,
        LL128: (*_TREE_LL128, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1),
        SIMPLE: (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 6, 0.6, 0.6, 0.7, 0.8, 0.9),
    },
    plateau_bytes=None,
    nvls_us=0.0,
    nvls_tree=None,
)
_2_9 = replace(
    _2_8,
    first=2009,
    net=_make_latencies(ring=(2.7, 4.0, 9.6), tree=(5.0, 8.5, 28.0)),
    ring_ll128=(16.9,) * 4,
    tree_ll128=((16.9,) * 3,) * 4,
    tree=((26.5, 18.5, 10.0), *((24.0, 22.5, 16.0),) * 3),
    tree_total=None,
    tree_share=0.92,
    tree_far_ll128=120 / 128,
    ll_limited=True,
    correction={
        LL: _TREE_LL,
        LL128: (*_TREE_LL128, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 0.92, 0.92),
        SIMPLE: _TREE_SIMPLE,
    },
)
_2_12 = replace(
    _2_9,
    first=2011,
    net=_make_latencies(ring=(2.7, 4.0, 28.0), tree=(5.0, 8.5, 28.0)),
    closing=2,
    ring_ll128=(20.0,) * 4,
    tree_ll128=((20.0, 20.0, 20.0),) * 4,
    tree=((26.5, 18.5, 10.0), *((24.0, 23.6, 17.8),) * 3),
    correction={
        LL: _TREE_LL,
        LL128: (*_TREE_LL128, *(0.6,) * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1),
        SIMPLE: _TREE_SIMPLE,
    },
)
_2_19 = replace(
    _2_12,
    first=2013,
    base=_make_latencies(ring=(6.6, 14.0, 8.4), tree=(6.8, 14.0, 0.0)),
    nvlink=_make_latencies(ring=(0.6, 1.9, 3.4), tree=(0.6, 1.25, 28.0)),
    net=_make_latencies(ring=(2.7, 4.0, 14.0), tree=(5.0, 8.5, 28.0)),
    far_ll=1.0,
    overhead=True,
    ampere_total=None,
    ring_ll128=(20.0, 20.0, 36.7, 36.7),
    tree_ll128=((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 29.0), (36.7, 36.7, 29.0)),
    tree=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (38.7, 41.4, 36.0)),
    nvls_us=23.0,
)
_2_28 = replace(
    _2_19,
    first=2023,
    base=_make_latencies(ring=(6.6, 14.0, 8.4), tree=(6.8, 14.0, 8.4)),
    nvlink=_make_latencies(ring=(0.6, 1.9, 3.4), tree=(0.6, 1.25, 4.0)),
    pci=_make_latencies(ring=(1.0, 2.5, 5.7), tree=(1.0, 1.9, 4.0)),
    net=_make_latencies(ring=(2.7, 4.0, 14.0), tree=(5.0, 8.5, 14.0)),
    exposed=True,
    closing=0,
    ll_share=1 / 2,
    ring_ll128=(20.0, 20.0, 36.7, 40.0),
    tree_ll128=((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 29.0), (55.6, 31.67, 20.0)),
    tree=((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0)),
    plateau_bytes=64,
    nvls_us=25.0,
    nvls_tree={2: (0.0, 57.7, 45.5), 3: (0.0, 96.0, 43.1)},
)
_RELEASES = (_2_8, _2_9, _2_12, _2_19, _2_28)
