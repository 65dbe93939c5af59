"""The best buckets for a pipeline of gradients: an exact search over partitions of the arrival order.

Gradients become ready one after another; a bucket is launched when its last one is, and collectives run one after
another. With ready times r, and a collective's time t(bytes), the earliest end of the first j gradients is

    f(j) = min over i < j of max(f(i), r(j)) + t(bytes of gradients i+1 .. j)

which is exact because f is what a later bucket sees of the earlier ones (Bellman). What it leaves out (two
collectives in flight, hooks and copies) the simulation of the result puts back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def best_partition(
    ready_s: Sequence[float],
    sizes_bytes: Sequence[int],
    collective_s: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    least_bytes: int = 0,
) -> list[int]:
    """Return the lengths of the buckets that end the last collective earliest, in arrival order.

    Args:
        ready_s: when each gradient is ready, ascending.
        sizes_bytes: bytes of each gradient.
        collective_s: seconds a collective takes and occupies its stream, by bytes; vectorised.
        least_bytes: of a bucket; one bucket where all gradients have fewer.
    """
    count = len(ready_s)
    before = np.concatenate([[0.0], np.cumsum(sizes_bytes, dtype=np.float64)])
    least = min(least_bytes, before[-1])
    end = np.zeros(count + 1)
    cut = np.zeros(count + 1, dtype=np.int64)
    for j in range(1, count + 1):
        sizes = before[j] - before[:j]
        ends = np.where(sizes < least, np.inf, np.maximum(end[:j], ready_s[j - 1]) + collective_s(sizes))
        cut[j] = int(np.argmin(ends))
        end[j] = ends[cut[j]]
    lengths = []
    j = count
    while j > 0:
        lengths.append(int(j - cut[j]))
        j = int(cut[j])
    return lengths[::-1]
