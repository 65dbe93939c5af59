"""Which algorithm Open MPI picks for an allreduce: `coll/tuned` without rules of a user's own.

Source: Open MPI's 4.1 series, `ompi/mca/coll/tuned/coll_tuned_decision_fixed.c` as rewritten in 2020, read from a copy
that names no tag and not compared with that of 4.1.4; of operations that commute. What each then does is by
`ompi/mca/coll/base/coll_base_allreduce.c`, from memory: a segmented ring without a segment size is a ring;
with fewer elements than ranks a ring is recursive doubling, and Rabenseifner's with fewer than it has parts too.
"""

from __future__ import annotations

from bisect import bisect_right

_DOUBLING, _RING, _SEGMENTED = "recursive-doubling", "ring", "segmented-ring"
_RABENSEIFNER, _REDUCE_BROADCAST = "rabenseifner", "reduce-broadcast"
ALGORITHMS = (_DOUBLING, _RING, _SEGMENTED, _RABENSEIFNER, _REDUCE_BROADCAST)
"""As `choice` names them: Open MPI's 3, 4, 5, 6 and 2."""

_FROM_RANKS = (0, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 4096)
_RULES: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = (
    (
        (8, 4096, 8192, 16384, 65536, 262144),
        (_RING, _DOUBLING, _RING, _DOUBLING, _RING, _SEGMENTED, _RABENSEIFNER),
    ),
    ((16, 8192), (_RING, _DOUBLING, _RABENSEIFNER)),
    ((8192,), (_DOUBLING, _RABENSEIFNER)),
    ((64, 4096), (_SEGMENTED, _DOUBLING, _RABENSEIFNER)),
    ((128,), (_SEGMENTED, _RABENSEIFNER)),
    ((262144,), (_DOUBLING, _RABENSEIFNER)),
    ((131072, 262144), (_REDUCE_BROADCAST, _DOUBLING, _RABENSEIFNER)),
    ((4096,), (_REDUCE_BROADCAST, _RABENSEIFNER)),
    ((2048, 16384), (_REDUCE_BROADCAST, _DOUBLING, _RABENSEIFNER)),
    ((2048, 4096, 16384), (_REDUCE_BROADCAST, _SEGMENTED, _DOUBLING, _RABENSEIFNER)),
    ((2048, 16384, 32768), (_REDUCE_BROADCAST, _SEGMENTED, _DOUBLING, _RABENSEIFNER)),
)
"""From so many ranks on: the bytes from which the next algorithm is taken, and the algorithms."""
_ELEMENT_BYTES = 4
"""Of float32, as gradients are."""


def pick_algorithm(ranks: int, size_bytes: int) -> str:
    """Return the algorithm of an allreduce of `size_bytes`, as it is carried out."""
    bounds, algorithms = _RULES[bisect_right(_FROM_RANKS, ranks) - 1]
    algorithm = algorithms[bisect_right(bounds, size_bytes)]
    elements = size_bytes // _ELEMENT_BYTES
    least = {_RING: ranks, _SEGMENTED: ranks, _RABENSEIFNER: 1 << (ranks.bit_length() - 1)}
    return _DOUBLING if elements < least.get(algorithm, 0) else algorithm
