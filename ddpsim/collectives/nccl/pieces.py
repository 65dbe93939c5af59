"""Into what NCCL cuts a message: chunks and lines, how many may be under way, channels and rounds through a switch.

A GPU passes a piece on when it has all of it. Simple sends chunks, halved for small messages so that the pipe fills
(`src/enqueue.cc`, `calcCollChunking`, 2.30). Of LL128 a piece is what all threads of a channel write at once, 20 warps
of 1920 bytes. LL passes on every 8 bytes as they arrive: the latency of its hops is all that fills its pipe.
"""

from __future__ import annotations

import math

from ddpsim.collectives.nccl.tuning import generation
from ddpsim.collectives.nccl.versions import LL, LL128, NVLS, NVLS_TREE

_STEPS = 8
"""Slots of a buffer between two GPUs: NCCL_STEPS. A chunk takes one, lines of LL128 share them."""

_STEP_BYTES, _LL128_STEP_BYTES = 1 << 19, 576_000
"""A slot of the buffers between two GPUs: of Simple 4 MiB / 8; of LL128 the data, 15 in 16, of 120 * 640 * 8 bytes."""
_LL128_BYTES = 20 * 1920
"""What 20 warps of a channel write at once."""
_MOST_NVLS_BYTES = 1 << 17
"""The largest chunk of an in-switch reduction: NCCL_NVLS_CHUNKSIZE by default."""
_USUAL_NVLS_BYTES = 1 << 16
"""The chunk at which `nvls.efficiency` is meant: that of 64 MiB to 1 GiB on a board of eight H100."""
_NVLS_CHANNELS, _NVLS_CHANNELS_BLACKWELL = 16, (24, 32)
"""Channels of an in-switch reduction up to Hopper, and from Blackwell on within a node and between nodes.

Source: NVLS_NCHANNELS_SM90, _SM100_NVL and _SM100 in NCCL's `src/transport/nvls.cc`.
"""
_NVLS_LEAST_BYTES = 1 << 15
"""What 512 threads of a channel are given at least, 64 bytes each (`src/enqueue.cc`)."""
_RING_CHUNK_BYTES = 1 << 21
"""The largest chunk of a ring by Simple: ALLREDUCE_CHUNKSTEPS of 4 slots."""
_APART_AFTER = 4
"""Loops of a ring after which its channels no longer rest at one time; chosen on the tables of 2 and 4 A100, see
`studies/accuracy/newer.md`."""
_MOST_LINES = 512
"""Pieces of an LL message that are simulated at most, whose events would else outnumber all others; chosen by hand."""


def pieces(algorithm: str, protocol: str, channel_bytes: float, *, per_node: int, nodes: int, heads: int) -> int:
    """Return in how many pieces a channel passes on its `channel_bytes`, in an in-switch reduction a head its part."""
    if algorithm in (NVLS, NVLS_TREE):
        channel_bytes /= heads
        size = _switch_chunk(algorithm, channel_bytes, nodes)
    else:
        size = _LL128_BYTES if protocol == LL128 else _tree_chunk(channel_bytes, per_node, nodes)
    return max(1, math.ceil(channel_bytes / size))


def chain_pieces(protocol: str, channel_bytes: float) -> int:
    """Return in how many pieces a chain passes on a channel's bytes; 0 of LL, whose lines are too small to count.

    A slot of the buffer each: BROADCAST_CHUNKSTEPS and REDUCE_CHUNKSTEPS are 1, and no message is too small for them
    (`src/include/device.h`, `src/enqueue.cc`).
    """
    if protocol == LL:
        return 0
    return max(1, math.ceil(channel_bytes / (_LL128_BYTES if protocol == LL128 else _STEP_BYTES)))


def window_of(protocol: str) -> int:
    """Return how many pieces may be under way between two GPUs."""
    return _STEPS * _LL128_STEP_BYTES // _LL128_BYTES if protocol == LL128 else _STEPS


def ll_pieces(transfer_s: float, hop_s: float) -> int:
    """Return pieces so small that each of a message of `transfer_s` takes less than half the latency of a hop."""
    return max(1, min(math.ceil(2 * transfer_s / hop_s), _MOST_LINES))


def tree_fill_s(piece_bytes: float, inner: tuple[int, float], outer: tuple[int, float], rate: float) -> float:
    """Return the time from the first byte until a piece has gone up and down, without that of the piece at `rate`.

    Args:
        piece_bytes: of all channels together.
        inner, outer: hops inside nodes and between them, with the bytes per second each moves.
        rate: of the whole, full pipe.
    """
    return piece_bytes * (inner[0] / inner[1] + outer[0] / outer[1] - 1 / rate)


def _tree_chunk(channel_bytes: float, per_node: int, nodes: int) -> int:
    depth = int(math.log2(nodes)) + (per_node if per_node > 1 else 0)
    size = _STEP_BYTES
    for least_pieces, least_bytes in ((8 * depth, 1 << 17), (4 * depth, 1 << 16), (depth, 1 << 15)):
        while channel_bytes // size < least_pieces and size > least_bytes:
            size //= 2
    return size


def _switch_chunk(algorithm: str, head_bytes: float, nodes: int) -> int:
    size = _MOST_NVLS_BYTES if algorithm == NVLS or nodes < 4 else 1 << 16
    limits = ((64, 1 << 16), (8, 1 << 15), (2, 1 << 14)) if algorithm == NVLS else ((4, 1 << 16), (1, 1 << 15))
    for rounds, smaller in limits:
        if head_bytes < rounds * size and size > smaller:
            size = smaller
    return size


def switch_channels(size_bytes: int, sm: int, nodes: int) -> int:
    """Return the channels of an in-switch reduction, fewer for a message that would leave their threads idle."""
    most = _NVLS_CHANNELS_BLACKWELL[nodes > 1] if generation(sm) >= generation(100) else _NVLS_CHANNELS
    return max(1, min(size_bytes // _NVLS_LEAST_BYTES, most))


def round_share(algorithm: str, head_bytes: float, nodes: int, idle_bytes: float) -> float:
    """Return the part of the usual rate through the switch that rounds of a head's `head_bytes` reach.

    A round takes as long as its chunk's bytes, and a time besides whatever they are, of `idle_bytes` more.
    """
    return (1 + idle_bytes / _USUAL_NVLS_BYTES) / (1 + idle_bytes / _switch_chunk(algorithm, head_bytes, nodes))


def copied_bytes(channel_bytes: float, ranks: int) -> float:
    """Return the bytes that a channel of a ring copies into the rank's own buffer while its link rests.

    A ring goes over its bytes in loops of a chunk a rank, and where each GPU pulls what the one before has in a buffer,
    a loop begins with a copy of a chunk there. In later loops some channels copy while others pull. The fewer the
    ranks, the more loops for the same bytes.
    """
    return min(channel_bytes / ranks, _APART_AFTER * _RING_CHUNK_BYTES)
