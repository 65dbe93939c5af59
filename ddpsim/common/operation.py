"""`Operation`: the collectives of a process group, with bytes and steps of their rings, counted as nccl-tests does.

A size is the bytes of the whole message: the sum's of an allreduce, a reduce or a broadcast, all parts together of an
all-gather or a reduce-scatter, of a send and receive what each rank sends the next, and of an all-to-all what each rank
has for all, its own part too. Source: nccl-tests
`doc/PERFORMANCE.md` and `src/*.cu`.

Another operation has its transfers in `ddpsim.collectives.schedules`, its costs in the transports of `nccl`,
`gloo` and `mpi`, its names in traces in `ddpsim.trace.records` and `ddpsim.chakra.steps`, what is copied out of it in
`ddpsim.schedules.copied`, and whether the executor launches it in `ddpexec.ddp.messages`.
"""

from __future__ import annotations

from enum import StrEnum

from ddpsim.common.errors import UnknownNameError


class Operation(StrEnum):
    """What all ranks of a process group carry out together."""

    ALLREDUCE = "allreduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SENDRECV = "sendrecv"
    ALL_TO_ALL = "alltoall"

    @classmethod
    def named(cls, name: str, place: str = "op") -> Operation:
        """Return the operation `name`, in any spelling of nccl-tests, torch or NCCL.

        Raises:
            UnknownNameError: one that is none.
        """
        plain = _plain(name)
        for operation in cls:
            if _plain(operation) == plain:
                return operation
        raise UnknownNameError.among("operation", name, list(cls), place=place)

    def steps(self, ranks: int) -> int:
        """Return the steps of a ring: p-1 to scatter sums, p-1 to gather them, p-1 hops along a chain, one to a
        neighbour, or to all at once."""
        if self in (Operation.SENDRECV, Operation.ALL_TO_ALL):
            return min(ranks - 1, 1)
        return (2 if self is Operation.ALLREDUCE else 1) * (ranks - 1)

    def sent(self, ranks: int) -> float:
        """Return the bytes that a rank of a ring sends for a byte of the message, which is busbw over algbw.

        2(p-1)/p of an allreduce, (p-1)/p of its halves and of an all-to-all, and 1 of what moves whole messages.
        """
        if self is Operation.ALLREDUCE:
            return 2 * (ranks - 1) / ranks
        return (ranks - 1) / ranks if self.in_parts or self is Operation.ALL_TO_ALL else 1.0

    def parts(self, ranks: int) -> int:
        """Return into how many parts a ring cuts the message: one for each rank, none where it sends whole ones."""
        return ranks if self in (Operation.ALLREDUCE, Operation.ALL_TO_ALL) or self.in_parts else 1

    @property
    def in_parts(self) -> bool:
        """Whether each rank has a part of the message at one end, so that a count is of one rank's part."""
        return self in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER)

    @property
    def rooted(self) -> bool:
        """Whether one rank's message goes to all, or all ranks' sum to one: along a chain, in pieces."""
        return self in (Operation.BROADCAST, Operation.REDUCE)

    @property
    def reduces(self) -> bool:
        """Whether it sums."""
        return self in (Operation.ALLREDUCE, Operation.REDUCE_SCATTER, Operation.REDUCE)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
