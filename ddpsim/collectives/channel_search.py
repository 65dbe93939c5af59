"""Which speed and how far to search: NCCL's order of compromises, and its splitting of wide channels.

Source: NCCL 2.30 `src/graph/search.cc`, `ncclTopoCompute` and `ncclTopoDupChannels`; `topo.cc`,
`ncclTopoSplitNvLink`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.collectives.ring_search import Limits, Ring, RingSearch
from ddpsim.topology.paths import KINDS, Paths

_GB = 1e9
"""Bytes per second of one GB/s, in which NCCL's tables are."""
_SLOW = (2.4, 1.2, 0.24, 0.12)
"""The last speeds of NCCL's table between nodes, GB/s; the tables below are all of them, by compute capability."""
_INTRA = {
    0: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    90: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    100: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
_INTER = {
    0: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, *_SLOW),
    90: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, *_SLOW),
    100: (96, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, *_SLOW),
}
_LEAST_SHARE = 0.49
"""Speeds below this share of a solution's are not tried."""

_PXN = KINDS.index("PXN")

_AMPERE = 80
_WIDE, _VERY_WIDE = 25 * _GB, 50 * _GB
_FEW_CHANNELS = 4
"""Of `ncclTopoDupChannels`: none below 25 GB/s is split, and after Ampere none below 50 of more than four."""


@dataclass(frozen=True, slots=True)
class FoundRings:
    """Rings of equal speed, and how far they had to go."""

    rings: list[Ring]
    speed: float
    limits: Limits

    @property
    def total(self) -> float:
        """Bytes per second of all rings together."""
        return len(self.rings) * self.speed

    def is_worth(self, speed: float, limits: Limits) -> bool:
        """Return whether NCCL would still look there: no slower than half, no farther."""
        nearer = limits.nic_kind <= max(self.limits.nic_kind, _PXN) and limits.kind <= self.limits.kind
        return speed >= _LEAST_SHARE * self.speed and nearer


def best_rings(
    search: RingSearch, speeds: Sequence[float], most: int, *, cross_nic: bool, fewest: int = 1
) -> FoundRings | None:
    """Return at least `fewest` rings with the greatest product of number and speed; the higher speed where equal."""
    # Speeds fall. Slower ones are tried down to half of the best one's, for more rings at less speed may carry more in
    # all. What a bound on the rings shows to be no better is not searched.
    best: FoundRings | None = None
    for speed in speeds:
        for limits in _levels(search, cross_nic=cross_nic):
            if best and not best.is_worth(speed, limits):
                continue
            if best and min(most, search.bound(speed, limits)) * speed <= best.total * (1 + 1e-9):
                continue
            rings = search.pack(speed, most, limits)
            if len(rings) >= fewest and (best is None or len(rings) * speed > best.total * (1 + 1e-9)):
                best = FoundRings(rings, speed, limits)
    return best


def _levels(search: RingSearch, *, cross_nic: bool) -> list[Limits]:
    """Return how far to look, in NCCL's order: routes between GPUs, then to NICs, then from NIC to NIC."""
    kinds, nic_kinds = search.kinds or [0], search.nic_kinds
    if not nic_kinds:
        return [Limits(kind) for kind in kinds]
    steps = sorted({*nic_kinds, *(kind for kind in kinds if kind > nic_kinds[0])})
    return [
        Limits(kind, step, cross)
        for cross in ([False, True] if cross_nic else [False])
        for step in steps
        for kind in kinds
        if kind <= step
    ]


def speeds_of(sm: int, network: bool) -> list[float]:
    """Return the speeds NCCL tries for GPUs of compute capability `sm`, falling, in bytes per second.

    Inside a node slow networks' speeds follow its own list, so that slow links have a ring too.
    """
    table = _INTER if network else _INTRA
    speeds = table[max(generation for generation in table if generation <= sm)]
    return [speed * _GB for speed in (speeds if network else (*speeds, *_SLOW))]


def nic_echo(sm: int) -> float:
    """Return bytes NCCL counts on a GPU's way out for each that a NIC sends it: an eighth before Ampere."""
    return 1 / 8 if sm < _AMPERE else 0.0


def double_rings(rings: list[Ring], speed: float, sm: int, most: int) -> tuple[list[Ring], float]:
    """Return wide rings as twice as many of half the speed, where that makes at most `most`.

    After Ampere only very wide ones, or few, are split.
    """
    whole = sm > _AMPERE and speed < _VERY_WIDE and len(rings) > _FEW_CHANNELS
    if speed < _WIDE or whole or 2 * len(rings) > most:
        return rings, speed
    return rings * 2, speed / 2


def count_fewest_rings(paths: Paths, gpus: Sequence[str]) -> int:
    """Return how many rings NCCL wants at least: two where NVLink joins GPUs in several separate groups.

    Its trees pass from group to group once, and need two channels.
    """
    group = {gpu: gpu for gpu in gpus}
    for number, gpu in enumerate(gpus):
        for other in gpus[number + 1 :]:
            if paths[gpu, other].kind == "NVL":
                group[other] = group[gpu]
    sizes = Counter(group.values())
    return 2 if sum(size > 1 for size in sizes.values()) > 1 else 1
