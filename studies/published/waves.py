"""What channels cost products of matrices by whole waves of tiles: `python -m studies.published.waves`.

A product of T tiles takes ceil(T / M) waves of a GPU's M multiprocessors, and ceil(T / (M - c)) where c channels hold
one each. Printed beside M / (M - c), by two tiles that libraries use: which one they choose is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.operators import Product
from studies.command import parser

WORKLOADS = ("gpt2-small", "bert-large", "vit-b16")
GPUS = ("A100", "H100")
TILES = ((128, 128), (128, 256))
CHANNELS = (2, 8, 16, 24)


def products(name: str) -> list[tuple[Product, float]]:
    """Return the products of a shipped workload's step under autocast, with their operations."""
    counted = load_workload(name).operators
    phases = None if counted is None else counted.amp or counted
    if phases is None:
        return []
    return [(each.product, each.flops) for each in (*phases.forward, *phases.backward) if each.product is not None]


def longer(found: Sequence[tuple[Product, float]], tile: tuple[int, int], all_of: int, taken: int) -> float:
    """Return the share by which products take longer, by their operations, with `taken` of `all_of` multiprocessors.

    >>> round(longer([((1, 1280, 1280, 64), 1.0)], (128, 128), 100, 20), 2)
    1.0
    """
    lost = 0.0
    for (many, rows, columns, _), flops in found:
        tiles = many * math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
        lost += flops * (math.ceil(tiles / (all_of - taken)) / math.ceil(tiles / all_of) - 1)
    return lost / sum(flops for _, flops in found)


def main() -> None:
    """Print the table."""
    print("| step | GPU | channels | M / (M - c) | " + " | ".join(f"tiles of {a} x {b}" for a, b in TILES) + " |")
    print("|---|---|--:|--:|" + "--:|" * len(TILES))
    for name in WORKLOADS:
        found = products(name)
        for gpu in GPUS:
            all_of = gpu_named(gpu).spec.multiprocessors
            assert all_of is not None
            for taken in CHANNELS:
                shares = [taken / (all_of - taken), *(longer(found, tile, all_of, taken) for tile in TILES)]
                print(f"| {name} | {gpu} | {taken} | " + " | ".join(f"{share:+.0%}" for share in shares) + " |")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
