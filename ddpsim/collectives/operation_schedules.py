"""Schedules of the operations other than an allreduce: halves of a ring, chains, shifts; closed forms beside them.

As in `schedules.py`, a closed form takes p ranks, S bytes, alpha seconds a message and beta seconds a byte sent.
"""

from __future__ import annotations

from collections.abc import Callable

from ddpsim.collectives.schedules import Builder, Transfer, TransferSchedule
from ddpsim.common.operation import Operation


def scattering_ring(ranks: int, segments: int = 1) -> TransferSchedule:
    """Return a reduce-scatter around a ring: rank r ends with the sum of part r, `segments` chunks to a part."""
    return _half_ring(ranks, segments, lambda rank, step: rank - step - 1, reduce=True)


def gathering_ring(ranks: int, segments: int = 1) -> TransferSchedule:
    """Return an all-gather around a ring of parts of which rank r has part r, `segments` chunks to a part."""
    return _half_ring(ranks, segments, lambda rank, step: rank - step, reduce=False)


def chain(ranks: int, pieces: int = 1, *, reduce: bool) -> TransferSchedule:
    """Return a broadcast from rank 0 along the ring, or the sum of all along it into rank 0, in pieces that follow."""
    builder = Builder(ranks, pieces)
    for piece in range(pieces):
        for hop in range(ranks - 1):
            source = hop + 1 if reduce else hop
            builder.send(source, (source + 1) % ranks, piece, piece + 1, reduce=reduce)
    return builder.build()


def shift(ranks: int) -> TransferSchedule:
    """Return one whole message from each rank to the next, all at once."""
    return TransferSchedule(
        ranks, 1, tuple(Transfer(rank, (rank + 1) % ranks, 0, 1, False, ()) for rank in range(ranks))
    )


def exchange_pairs(ranks: int, *, in_turn: bool = False) -> TransferSchedule:
    """Return an all-to-all: chunk t of each rank goes to rank t, all at once.

    Args:
        ranks: how many there are.
        in_turn: whether of two opposite ranks, p/2 apart, the second sends when it has what the first sent.
    """
    pairs = [(rank, (rank + step) % ranks) for step in range(1, ranks) for rank in range(ranks)]
    half = ranks // 2 if in_turn and ranks % 2 == 0 else 0
    return TransferSchedule(
        ranks,
        ranks,
        tuple(
            Transfer(source, target, target, target + 1, False, (number - half,) if source - target == half > 0 else ())
            for number, (source, target) in enumerate(pairs)
        ),
    )


def build_ring(operation: Operation, ranks: int, pieces: int = 1) -> TransferSchedule:
    """Return an operation other than an allreduce, around a ring but for an all-to-all; `pieces` is of a rooted one."""
    if operation.rooted:
        return chain(ranks, pieces, reduce=operation.reduces)
    if operation is Operation.SENDRECV:
        return shift(ranks)
    if operation is Operation.ALL_TO_ALL:
        return exchange_pairs(ranks)
    return scattering_ring(ranks) if operation.reduces else gathering_ring(ranks)


def _half_ring(ranks: int, segments: int, part: Callable[[int, int], int], *, reduce: bool) -> TransferSchedule:
    builder = Builder(ranks, ranks * segments)
    for step in range(ranks - 1):
        for segment in range(segments):
            for rank in range(ranks):
                chunk = part(rank, step) % ranks * segments + segment
                builder.send(rank, (rank + 1) % ranks, chunk, chunk + 1, reduce=reduce)
    return builder.build()
