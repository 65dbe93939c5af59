"""Schedules along trees: reduce to the root and broadcast from it, by GPUs or by switches; closed form beside them."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.collectives.schedules import Builder, TransferSchedule, from_root


def tree(parents: Sequence[int | None], chunks: int = 1) -> TransferSchedule:
    """Return reduce to the root and broadcast from it, `chunks` pieces one behind the other.

    Args:
        parents: the parent of each rank, None for the root.
    """
    builder = Builder(len(parents), chunks)
    downward = from_root(parents)
    for chunk in range(chunks):
        for rank in reversed(downward):
            if (parent := parents[rank]) is not None:
                builder.send(rank, parent, chunk, chunk + 1, reduce=True)
        for rank in downward:
            if (parent := parents[rank]) is not None:
                builder.send(parent, rank, chunk, chunk + 1, reduce=False)
    return builder.build()


def in_switch(parents: Sequence[int | None], per_node: int, heads: Sequence[int], pieces: int = 1) -> TransferSchedule:
    """Return reduction and multicast by each node's switch, between nodes along a tree over `parents`.

    Every GPU sends a piece to the switch, which sends the sum to the piece's head, the same GPU number on each node;
    the heads reduce to the root's and back; each sends the result to its switch, which sends it to all. Participants
    are numbered node by node: per_node GPUs, the switch as it reduces, the switch as it multicasts. Chunks are numbered
    piece by piece, head by head.
    """
    width = per_node + 2
    builder = Builder(len(parents) * width, pieces * len(heads))
    downward = from_root(parents)
    for chunk in range(pieces * len(heads)):
        head = heads[chunk % len(heads)]
        for first in range(0, len(parents) * width, width):
            for gpu in range(per_node):
                builder.send(first + gpu, first + per_node, chunk, chunk + 1, reduce=True)
            builder.send(first + per_node, first + head, chunk, chunk + 1, reduce=False)
        for node in reversed(downward):
            if (up := parents[node]) is not None:
                builder.send(node * width + head, up * width + head, chunk, chunk + 1, reduce=True)
        for node in downward:
            if (up := parents[node]) is not None:
                builder.send(up * width + head, node * width + head, chunk, chunk + 1, reduce=False)
        for first in range(0, len(parents) * width, width):
            builder.send(first + head, first + per_node + 1, chunk, chunk + 1, reduce=False)
            for gpu in range(per_node):
                builder.send(first + per_node + 1, first + gpu, chunk, chunk + 1, reduce=False)
    return builder.build()
