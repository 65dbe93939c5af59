"""Gloo's own schedules of the operations other than an allreduce, as data, and what a tree and a reduce send.

Sources: `gloo/allgather.cc`, `gloo/reduce.cc`, `gloo/broadcast.cc`. Between two ranks one connection carries both
directions, in order: the message by which a rank says that it is ready to receive waits behind what that rank is
sending, so that two large messages go one after the other. Measured on a link of 200 Mbit/s, torch 2.13, 1 to 8 MiB
each way: `isend` and `irecv` take 2.0 times one message in three of four tries and once in the rest, with a group for
each sender 1.0 to 1.1; an all-gather 1.5 times one rank's part.
"""

from __future__ import annotations

from ddpsim.collectives.schedules import Builder, Transfer, TransferSchedule

EARLIER_WEIGHT = 1.5
"""Share of the root's link that each message has beside the one started after it, all whole and all at once.

Chosen on 8 ranks over links of 200 Mbit/s, torch 2.13: a broadcast of 0.5 to 4 MiB takes 4.6 to 5.6 times one message;
even shares would take 6, one message after the other 3, this 4.8. Judged on 4 ranks: 2.5 to 2.9, this 2.7.
"""


def exchange() -> TransferSchedule:
    """Return two ranks' messages to each other on one connection: one after the other."""
    return TransferSchedule(2, 1, (Transfer(0, 1, 0, 1, False, ()), Transfer(1, 0, 0, 1, False, (0,))))


def build_pair_all_gather() -> TransferSchedule:
    """Return an all-gather of two ranks, each part in two segments: the first goes alone, the last too."""
    first, back = Transfer(0, 1, 0, 1, False, ()), Transfer(1, 0, 2, 3, False, (0,))
    return TransferSchedule(2, 4, (first, back, Transfer(0, 1, 1, 2, False, ()), Transfer(1, 0, 3, 4, False, ())))


def count_exchanged(*, gather: bool) -> float:
    """Return what one direction of the connection waits for, in bytes for a byte of the message, of those schedules."""
    return 0.75 if gather else 2.0


def binomial(ranks: int) -> TransferSchedule:
    """Return a broadcast from rank 0 of the whole message: rank r sends to r + 1, r + 2, r + 4, ... at once, those
    above the number's own highest bit."""
    builder = Builder(ranks, 1)
    for source, target, _ in _sends(ranks):
        builder.send(source, target, 0, 1, reduce=False)
    return builder.build()


def binomial_weights(ranks: int) -> dict[tuple[int, int], float]:
    """Return the share of its source's link that each message of the tree has beside the others."""
    return {(source, target): EARLIER_WEIGHT**-order for source, target, order in _sends(ranks)}


def binomial_sent(ranks: int) -> float:
    """Return the time until the last rank has the message, in times of one message on a link."""
    sends: dict[int, list[tuple[int, int]]] = {}
    for source, target, order in _sends(ranks):
        sends.setdefault(source, []).append((order, target))
    has = {0: 0.0}
    for source in range(ranks):
        now, left = has[source], dict.fromkeys(sends.get(source, []), 1.0)
        while left:
            total = sum(EARLIER_WEIGHT**-order for order, _ in left)
            rates = {each: EARLIER_WEIGHT ** -each[0] / total for each in left}
            passed = min(rest / rates[each] for each, rest in left.items())
            now += passed
            left = {each: rest - passed * rates[each] for each, rest in left.items()}
            has |= {target: now for (_, target), rest in left.items() if rest < 1e-9}
            left = {each: rest for each, rest in left.items() if rest >= 1e-9}
    return max(has.values())


def build_reduce(ranks: int, segments: int) -> TransferSchedule:
    """Return a reduce to rank 0: sums of segments around the ring, then every rank's part straight to rank 0.

    All but two of the message's segments go around, (p-1)/p of it only where each part is two of them.
    """
    builder, part = Builder(ranks, segments), segments // ranks
    for step in range(segments - 2):
        for rank in range(ranks):
            # Gloo's ring sends to the rank before, ours to the one after.
            chunk = ((-rank % ranks + 1) * part + step) % segments
            builder.send(rank, (rank + 1) % ranks, chunk, chunk + 1, reduce=True)
    for rank in range(1, ranks):
        own = -rank % ranks * part
        builder.send(rank, 0, own, own + part, reduce=False)
    return builder.build()


def _sends(ranks: int) -> list[tuple[int, int, int]]:
    """Return (source, target, which of the source's own) of a binomial tree from rank 0, in the order they start."""
    bits = (ranks - 1).bit_length()
    found, own = [], [0] * ranks
    for bit in range(bits):
        for source in range(min(1 << bit, ranks)):
            if (target := source + (1 << bit)) < ranks:
                found.append((source, target, own[source]))
                own[source] += 1
    return found
