"""What RCCL believes: its cost model, NCCL's in structure, with figures by board in place of NCCL's by generation.

Sources: ROCm/rccl src/graph/tuning.cc @9e22c79d (tuning_model_0, 3, 5 and 6, `ncclTopoTuneModel`,
`ncclTopoGetAlgoTime`); src/graph/rome_models.cc @cb829d62 says which board has which; src/rccl_wrap.cc @00c78b70
(`rcclUpdateCollectiveProtocol`) takes the protocol by size between nodes. Latencies are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, log2

from ddpsim.collectives.nccl.shape import Shape, TuningEntry
from ddpsim.collectives.nccl.versions import ALL_PAIRS, LL, LL128, PROTOCOLS, RING, SIMPLE, TREE

Table = Mapping[tuple[str, str], float]
"""By algorithm and protocol."""


@dataclass(frozen=True, slots=True)
class BoardConstants:
    """The constants of RCCL's model for a kind of board.

    Attributes:
        xgmi, net: latency of a hop by xGMI, between nodes.
        shares: of the rings' bandwidth, on up to two nodes and on more.
        tenths: of that again, by floor(log2(bytes / 64)), of trees, and between nodes of rings.
        ll_bytes, ll128_bytes: up to which an allreduce between nodes runs LL, then LL128; 0 leaves it to the model.
    """

    xgmi: Table
    net: Table
    shares: tuple[Table, Table]
    tenths: Mapping[tuple[str, str], tuple[int, ...]]
    ll_bytes: int = 0
    ll128_bytes: int = 0


_Row = tuple[float, float, float]


def _of(tree: _Row, ring: _Row) -> Table:
    rows = ((TREE, tree), (RING, ring))
    return {(name, protocol): value for name, row in rows for protocol, value in zip(PROTOCOLS, row, strict=True)}


# fmt: off
ANY = BoardConstants(
    xgmi=_of(tree=(0.8, 1.4, 2.5), ring=(0.8, 2.2, 3.6)),
    net=_of(tree=(11.8, 18.2, 20.8), ring=(9.5, 19.8, 15.1)),
    shares=(_of(tree=(0.04, 0.22, 0.91), ring=(0.04, 0.34, 1.0)), _of(tree=(0.04, 0.22, 0.95), ring=(0.04, 0.34, 1.0))),
    tenths={
        (TREE, LL): (1, 2, 1, 1, 9, 3, 4, 1, 2, 4, 2, 1, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        (TREE, LL128): (1, 3, 10, 1, 5, 10, 9, 10, 10, 10, 3, 1, 4, 5, 5, 4, 4, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2),
        (TREE, SIMPLE): (2, 10, 1, 1, 7, 2, 4, 1, 1, 3, 4, 3, 6, 8, 10, 10, 10, 10, 9, 8, 8, 8, 8, 8, 9, 9, 9),
        (RING, LL): (1, 1, 1, 1, 1, 2, 4, 2, 3, 5, 3, 1, 5, 5, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        (RING, LL128): (1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 10, 10, 10, 10, 10, 10, 8, 7, 5, 4, 4, 3, 3, 3, 3, 3, 3),
        (RING, SIMPLE): (
            10, 8, 2, 10, 10, 3, 10, 1, 1, 2, 2, 1, 5, 10,
            8, 8, 10, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10,
        ),
    },
)
BOARDS = BoardConstants(
    xgmi=_of(tree=(0.8, 0.0, 2.5), ring=(0.8, 0.0, 3.6)),
    net=_of(tree=(12.5, 0.0, 22.4), ring=(9.5, 0.0, 19.8)),
    shares=(_of(tree=(0.2, 0.0, 1.75), ring=(0.2, 0.0, 1.0)), _of(tree=(0.2, 0.0, 0.96), ring=(0.2, 0.0, 1.0))),
    tenths={
        (TREE, LL): (1, 1, 1, 1, 1, 1, 10, 10, 2, 10, 9, 10, 6, 4, 6, 4, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2),
        (TREE, SIMPLE): (
            10, 10, 10, 10, 10, 10, 1, 1, 1, 2, 10, 8, 10, 10,
            10, 10, 10, 10, 10, 10, 10, 8, 7, 8, 9, 7, 7,
        ),
        (RING, LL): (1, 1, 1, 1, 1, 3, 1, 2, 1, 4, 4, 2, 2, 3, 7, 5, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2),
        (RING, SIMPLE): (1, 1, 1, 1, 1, 1, 1, 5, 10, 1, 3, 1, 1, 1, 2, 2, 2, 3, 4, 7, 10, 10, 10, 10, 10, 10, 10),
    },
)
CDNA3 = BoardConstants(
    xgmi=_of(tree=(0.9, 0.9, 2.3), ring=(0.8, 0.8, 2.1)),
    net=_of(tree=(10.5, 10.5, 25.0), ring=(9.5, 9.5, 320.0)),
    shares=(_of(tree=(0.06, 0.06, 0.11), ring=(0.08, 0.08, 1.0)), _of(tree=(0.06, 0.06, 0.59), ring=(0.08, 0.08, 1.0))),
    tenths={
        (TREE, LL): (1, 1, 1, 1, 1, 1, 10, 10, 10, 10, 10, 6, 10, 9, 10, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        (TREE, LL128): (1, 1, 1, 1, 1, 1, 10, 10, 10, 10, 10, 6, 10, 9, 10, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        (TREE, SIMPLE): (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 10, 10, 10, 10, 10, 7, 7, 5, 6, 6, 6),
        (RING, LL): (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 2, 10, 4, 4, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1),
        (RING, LL128): (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 2, 10, 4, 4, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1),
        (RING, SIMPLE): (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 8, 10, 10, 10),
    },
    ll_bytes=1_048_576,
    ll128_bytes=9_437_184,
)
CDNA4 = replace(
    CDNA3,
    tenths={
        **CDNA3.tenths,
        (TREE, LL128): (1, 1, 1, 1, 1, 1, 10, 10, 10, 10, 10, 6, 10, 9, 10, 10, 10, 10, 10, 20, 1, 1, 1, 1, 1, 1, 1),
        (TREE, SIMPLE): (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 10, 1, 1, 1, 9, 9, 7, 8, 6, 6, 6),
        (RING, LL128): (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 2, 10, 4, 4, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        (RING, SIMPLE): (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 8, 8, 10, 10),
    },
    ll_bytes=131_071,
    ll128_bytes=17_660_227,
)
# fmt: on

_PCI_US = {LL: 2.2, LL128: 2.2, SIMPLE: 5.7}
BASE_US = {LL: 12.0, LL128: 12.0, SIMPLE: 17.0}
_SEVERAL = 3.8
"""By what LL128 goes farther on more than two nodes."""
_POST_US = {"amd": 2.0, "other": 1.0}
"""What posting a message to the network takes, by the host's processor; three times that by Simple."""

ALL_PAIRS_BYTES = 8 << 20
"""Up to which eight meshed GPUs of one node send each to each by an MSCCL schedule instead of a ring.

RCCL ships such schedules (tools/msccl-algorithms, `allreduce-allpairs-8n-*`); up to where they are taken changed with
releases, and is here where the table of AAC8 (studies/amd) leaves their slope.
"""
_FIRST, _RULED_OUT = 1.0, 1e6
"""Believed microseconds of what is taken before anything else, and the factor on what is not taken at a size; finite,
so that an algorithm that is forced has a time."""


def model(shape: Shape) -> BoardConstants:
    """Return the constants RCCL takes for a board: meshes of eight have their own, and boards of two dies with NICs."""
    if shape.mesh:
        return CDNA4 if shape.gcn.startswith("gfx95") else CDNA3
    return BOARDS if shape.gcn == "gfx90a" and shape.nodes > 1 else ANY


def entries(shape: Shape) -> Iterator[TuningEntry]:
    """Yield every algorithm and protocol RCCL may use on `shape`, with what it believes of each."""
    known = model(shape)
    meshed = shape.gcn.startswith(("gfx94", "gfx95"))
    total = shape.channels * (shape.channel_bandwidth if shape.nodes > 2 else shape.tree_bandwidth)
    for protocol in PROTOCOLS:
        if (protocol == LL128 and not shape.ll128) or (protocol != SIMPLE and shape.simple_only):
            continue
        for algorithm in (RING, TREE):
            alone = shape.nodes == 1 and meshed and protocol == SIMPLE
            if algorithm == TREE and (alone or shape.ranks == 1):
                continue
            share = known.shares[shape.nodes > 2][algorithm, protocol]
            bus = shape.ranks / (2 * (shape.ranks - 1)) if algorithm == RING and shape.ranks > 1 else 0.5
            yield TuningEntry(algorithm, protocol, _latency_us(known, shape, algorithm, protocol), total * share * bus)
    if shape.mesh and shape.nodes == 1:
        yield TuningEntry(ALL_PAIRS, SIMPLE, BASE_US[SIMPLE], total * shape.ranks / (2 * (shape.ranks - 1)))


def _latency_us(known: BoardConstants, shape: Shape, algorithm: str, protocol: str) -> float:
    inner_us = known.xgmi[algorithm, protocol] if shape.nvlink else _PCI_US[protocol]
    outer_us = known.net[TREE if shape.per_node == 1 else algorithm, protocol]
    outer_us += shape.nic_latency_us * (2 if protocol == SIMPLE else 1)
    base_us = BASE_US[protocol]
    if algorithm == TREE:
        return base_us + 2 * ((shape.per_node - 1) * inner_us + floor(log2(shape.nodes)) * outer_us)
    outer = 2 * (shape.nodes - 1)
    if shape.nodes > 1:
        post_us = _POST_US["amd" if shape.amd else "other"] * (3 if protocol == SIMPLE else 1)
        inner_us = max(inner_us, post_us)
    return base_us + (2 * (shape.ranks - 1) - outer) * inner_us + outer * outer_us


def hop_us(shape: Shape, protocol: str) -> float:
    """Return the latency of a ring's hop: between nodes where there are several."""
    known = model(shape)
    if shape.nodes == 1 and not shape.nvlink:
        return _PCI_US[protocol]
    return (known.net if shape.nodes > 1 else known.xgmi)[RING, protocol]


@lru_cache(maxsize=256)
def _table(shape: Shape) -> tuple[TuningEntry, ...]:
    return tuple(entries(shape))


def time_us(entry: TuningEntry, shape: Shape, size_bytes: int) -> float:
    """Return what RCCL believes an allreduce of `size_bytes` takes by `entry`.

    Between nodes of a board whose model has limits, the algorithm is the believed one and the protocol that of the
    size.
    """
    if entry.algorithm == ALL_PAIRS:
        return _FIRST if size_bytes <= ALL_PAIRS_BYTES else _RULED_OUT * _estimate_us(entry, shape, size_bytes)
    known = model(shape)
    if shape.nodes == 1 or not known.ll_bytes:
        return _estimate_us(entry, shape, size_bytes)
    believed_us = min(
        _estimate_us(each, shape, size_bytes) for each in _table(shape) if each.algorithm == entry.algorithm
    )
    return believed_us * (1.0 if entry.protocol == _choose_by_size(known, shape, size_bytes) else _RULED_OUT)


def _choose_by_size(known: BoardConstants, shape: Shape, size_bytes: int) -> str:
    ll128_bytes = known.ll128_bytes * (_SEVERAL if shape.nodes > 2 else 1.0)
    if shape.simple_only or size_bytes > max(known.ll_bytes, ll128_bytes if shape.ll128 else 0):
        return SIMPLE
    return LL if size_bytes <= known.ll_bytes else LL128


def _estimate_us(entry: TuningEntry, shape: Shape, size_bytes: int) -> float:
    tenths = model(shape).tenths.get((entry.algorithm, entry.protocol), ())
    bandwidth = entry.bandwidth
    if tenths and (entry.algorithm == TREE or shape.nodes > 1):
        place = int(log2(max(size_bytes >> 6, 1)))
        bandwidth *= tenths[min(place, len(tenths) - 1)] / 10
    return entry.latency_us + size_bytes / (1000 * bandwidth)
