"""How long a product of matrices takes: tiles of its result on multiprocessors, wave by wave.

A library computes a result in tiles, each by one multiprocessor, and all of a wave together; the last wave is seldom
full, and small results do not fill one. Of several sizes of tile, and of cuts along the depth, the fastest is taken, as
libraries' heuristics mean to ("Matrix Multiplication Background User's Guide", NVIDIA docs, on tile and wave
quantization).
"""

from __future__ import annotations

import math
from functools import cache

from ddpsim.workload.operators import Product

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
