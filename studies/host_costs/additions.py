"""How long adding a gradient to one that exists takes beside copying it: `python -m studies.host_costs.additions`.

On this machine's processor, one thread, by size; `ddpsim.simulation.rank_config.ADDED` says what becomes of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from studies.command import parser

SIZES_BYTES = tuple(1 << power for power in (20, 22, 24, 26))
REPEATED = 30


def ratio(size_bytes: int) -> float:
    """Return the time of `a += b` over that of the copy of a gradient, scaled, into a bucket."""
    torch.set_num_threads(1)
    gradient, other = torch.ones(size_bytes // 4), torch.ones(size_bytes // 4)
    copied_s = _seconds(lambda: torch.mul(gradient, 0.5, out=other))
    return _seconds(lambda: other.add_(gradient)) / copied_s


def _seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATED):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    for size in SIZES_BYTES:
        print(f"{size >> 20:3d} MiB: {ratio(size):.2f} of a copy")
