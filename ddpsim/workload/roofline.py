"""A roofline of operators: the longest of arithmetic, memory traffic and a kernel's minimum, and what each term is.

Start at `operator_s`. `share_of_waves` is what a product of matrices reaches of the multiprocessors: a library computes
a result in tiles, each by one multiprocessor, and all of a wave together; the last wave is seldom full, and small
results do not fill one. Of several sizes of tile, and of cuts along the depth, the fastest is taken, as libraries'
heuristics mean to ("Matrix Multiplication Background User's Guide", NVIDIA docs, on tile and wave quantization).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import UnknownNameError
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.operators import NARROW, TERMS, Operator, Product
from ddpsim.workload.optimizers import OPTIMIZERS, Optimizer

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of a tile of the result, as that guide lists cuBLAS's."""
FEED = 16.0
"""Elements of a tile's edge: one of e by e loads 2 / e elements for each that it multiplies, and takes 1 + FEED * 2 / e
of the time. Chosen by hand: that guide has larger tiles as the more efficient ones, without figures."""
DEPTHS = (1, 2, 4, 8)
"""Cuts along the depth that are tried; each must leave `LEAST_DEPTH`."""
LEAST_DEPTH = 256
PROLOGUE = 32
"""Elements of depth whose time a tile takes before its first and after its last; one step of the inner loop."""


@cache
def share_of_waves(product: Product, multiprocessors: int) -> float:
    """Return the share of their full rate that multiprocessors reach on `product`; 1 is of an endless one."""
    many, rows, columns, depth = product
    best = math.inf
    for high, wide in TILES:
        tiles = many * math.ceil(rows / high) * math.ceil(columns / wide)
        fed = (1 + FEED * (1 / high + 1 / wide)) / _FED
        for cuts in DEPTHS:
            if cuts > 1 and depth / cuts < LEAST_DEPTH:
                break
            waves = math.ceil(tiles * cuts / multiprocessors)
            best = min(best, waves * high * wide * (depth / cuts + PROLOGUE) * fed)
    return many * rows * columns * depth / (best * multiprocessors)


_FED = 1 + FEED * (1 / 256 + 1 / 128)


WINOGRAD = 2.25
"""By so much fewer multiplications a 3x3 convolution in fp32 may do with than are counted (Lavin and Gray 2016)."""

WAVES, MINIMUM, OPTIMIZER_TERM = "waves", "minimum", "optimizer"
SWITCHES = (*TERMS, WAVES, MINIMUM, OPTIMIZER_TERM)
"""What can be left out of an estimate: kernels of a term, what products lose to tiles and waves, the least time of a
kernel, the optimizer."""


def operator_s(operator: Operator, gpu: AchievedGpu, precision: str) -> float:
    """Return the device's time of one operator: the longest of its traffic, its arithmetic and a kernel's minimum."""
    narrow = precision in NARROW and not operator.fp32
    traffic = operator.traffic_bytes / 2 if narrow else operator.traffic_bytes
    traffic *= gpu.achieved.traffic_factor(operator.kind, precision)
    traffic -= found_in_cache(operator, traffic, gpu.achieved.cache_bytes)
    return max(traffic / gpu.achieved_Bps, arithmetic_s(operator, gpu, precision), gpu.achieved.kernel_s)


def found_in_cache(operator: Operator, traffic: float, cache_bytes: float | None) -> float:
    """Return the bytes of an operator's `traffic` that it finds in the second-level cache.

    A kernel of one pass that moves no more than the cache holds finds there what it reads, half of what it moves, for
    the kernel before wrote it; one that moves twice as much finds nothing, and between the two it is a line. What is of
    parameters and their gradients is always read from memory.
    """
    if operator.kind != "memory" or not cache_bytes or not operator.traffic_bytes:
        return 0.0
    own = 1 - operator.fixed_bytes / operator.traffic_bytes
    return min(max(2 - traffic / cache_bytes, 0.0), 1.0) / 2 * own * traffic


def arithmetic_s(operator: Operator, gpu: AchievedGpu, precision: str) -> float:
    """Return the time of an operator's arithmetic alone."""
    if not operator.flops:
        return 0.0
    attention = operator.term == "attention" and ("attention", precision) in gpu.achieved.shares
    flops = gpu.achieved_flops("attention" if attention else operator.kind, precision)
    if operator.product is not None and gpu.achieved.multiprocessors is not None:
        flops *= share_of_waves(operator.product, gpu.achieved.multiprocessors)
    return operator.flops / flops


def roofline_s(
    phases: Sequence[Sequence[Operator]], gpu: AchievedGpu, precision: str, without: Collection[str] = ()
) -> list[list[float]]:
    """Return the device's time of each operator of each phase, those of the terms in `without` left out.

    Raises:
        UnknownNameError: no such term.
    """
    for name in without:
        if name not in SWITCHES:
            raise UnknownNameError.among("term", name, SWITCHES, place="without")
    priced = gpu
    if WAVES in without:
        priced = AchievedGpu(gpu.spec, replace(priced.achieved, multiprocessors=None))
    if MINIMUM in without:
        priced = AchievedGpu(gpu.spec, replace(priced.achieved, kernel_s=0.0))
    return [
        [0.0 if (each.term or "pointwise") in without else operator_s(each, priced, precision) for each in phase]
        for phase in phases
    ]


def shares_of_terms(
    phases: Sequence[Sequence[Operator]],
    gpu: AchievedGpu,
    precision: str,
    works: Sequence[Sequence[float]],
    without: Collection[str] = (),
) -> Mapping[str, float]:
    """Return the share of a step's device time of each term, the largest first.

    Those of `waves` and `minimum` are contained in the others: by so much the step would be shorter without them.

    Args:
        phases: of forward and backward.
        works: of these phases and the optimizer, in seconds.
        without: as `roofline_s` takes it.
    """
    whole = sum(map(sum, works))
    seconds = dict.fromkeys(TERMS, 0.0)
    for phase, times in zip(phases, works, strict=False):
        for operator, time in zip(phase, times, strict=True):
            seconds[operator.term or "pointwise"] += time
    seconds[OPTIMIZER_TERM] = sum(works[2])
    before = sum(map(sum, works[:2]))
    for name in (WAVES, MINIMUM):
        less = roofline_s(phases, gpu, precision, {*without, name})
        seconds[name] = before - sum(map(sum, less))
    shares = {name: round(time / whole, 4) for name, time in seconds.items()}
    return dict(sorted(((name, share) for name, share in shares.items() if share > 0), key=lambda pair: -pair[1]))


def floors_s(
    phases: Sequence[Sequence[Operator]],
    gpu: AchievedGpu,
    precision: str,
    optimizer: Optimizer,
    parameters: Sequence[Parameter],
) -> list[float]:
    """Return what forward, backward and optimizer take at least, whatever stays in caches and however it is fused."""
    peak, fewer = gpu.peak_flops[precision], {"conv": WINOGRAD} if precision == "fp32" else {}
    arithmetic = [sum(each.flops / fewer.get(each.kind, 1.0) for each in phase) / peak for phase in phases]
    size_bytes = sum(parameter.size_bytes for parameter in parameters)
    moved = min(optimizer.passes, OPTIMIZERS["sgd"].passes) * size_bytes
    return [*arithmetic, moved / gpu.memory_Bps]


def arithmetic_share(
    phases: Sequence[Sequence[Operator]], gpu: AchievedGpu, precision: str, works: Sequence[Sequence[float]]
) -> float:
    """Return the share of a step that its arithmetic bounds, on the device's clock rather than its memory's."""
    operators = zip((*phases[0], *phases[1]), (*works[0], *works[1]), strict=True)
    bound = sum(work for operator, work in operators if arithmetic_s(operator, gpu, precision) >= work)
    return round(bound / sum(map(sum, works)), 3)
