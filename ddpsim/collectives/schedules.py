"""How a collective's time comes about, by hand; schedules of transfers as data, with closed forms.

A collective is an operation on S bytes by the p ranks of a group, run under conditions (`conditions.py`). A schedule
says which rank sends which chunks to which, after what: equal parts of the message, numbered from 0. Where each message
takes alpha seconds before its first byte, and beta seconds a byte, the schedule has a closed form (Thakur,
Rabenseifner, Gropp 2005). A ring has p-1 steps to scatter the sums and p-1 to gather them, each of S/p bytes:

    start + 2(p-1) alpha + 2(p-1)/p S beta

All else says where start, alpha and beta come from:

- *machine*: which links a step of the ring crosses, and how many bytes a second the tightest of them carries, by the
  graph (`channels.py`, `routes.py`);
- *library*: which algorithm and protocol it picks for these bytes (`nccl/tuning.py`; here conditions force the ring);
- *calibration*: the constants, fitted or priors with a source (`transport_priors.py`). Of NCCL's ring by Simple:
  `start` is `nccl.start.simple_s`, alpha `nccl.ring.hop.KIND.simple_s`, and 1/beta a link's bandwidth times
  `nccl.efficiency.KIND.simple`, as long as the threads of all channels (`nccl.channel.simple`, of V100 1.1 times it)
  move more;
- *conditions*: on an idle stream, as DDP launches them, `nccl.isolated_s` comes on top.

Four V100 under one PCIe switch, 12 GB/s each way, allreduce 1 MiB. Two channels could move 54 GB/s: links bound it.

>>> from ddpsim.collectives.conditions import CollectiveOptions
>>> from ddpsim.collectives.execute import make_transport
>>> from ddpsim.topology.spec import load_topology
>>> placement = load_topology("4xv100-pcie").place(nodes=1)
>>> nccl = make_transport(placement, "nccl", None, CollectiveOptions(algorithm="ring", isolated=False))
>>> nccl.choice(2**20)
AlgorithmChoice(algorithm='ring', protocol='simple', channels=2)
>>> constant = nccl.calibration
>>> start_s, alpha_s = constant["nccl.start.simple_s"], constant["nccl.ring.hop.pcie.simple_s"]
>>> beta = 1 / (12e9 * constant["nccl.efficiency.pcie.simple"])
>>> terms_s = start_s, 2 * (4 - 1) * alpha_s, 2 * (4 - 1) / 4 * 2**20 * beta
>>> " + ".join(f"{each * 1e6:.1f}" for each in terms_s), f"{sum(terms_s) * 1e6:.1f} us"
('11.4 + 22.9 + 137.8', '172.1 us')
>>> f"{(start_s + ring_s(4, 2**20, alpha_s, beta)) * 1e6:.1f} us by the closed form"
'172.1 us by the closed form'
>>> f"{nccl.allreduce_s(2**20) * 1e6:.1f} us as every prediction has it"
'172.1 us as every prediction has it'

As DDP launches it:

>>> ddp = make_transport(placement, "nccl", None, CollectiveOptions(algorithm="ring"))
>>> f"{(ddp.allreduce_s(2**20) - nccl.allreduce_s(2**20)) * 1e6:.1f} us", f"{constant['nccl.isolated_s'] * 1e6:.1f} us"
('4.0 us', '4.0 us')

What else is in flight on the same links slows the bytes alone: a `Transport` hands them over as a `Demand`
(`transport.py`), and `ddpsim.collectives.network` shares the links.

Below: what a schedule is and `Builder`, allreduces, the other operations, and `Steps`: schedules with the way of each
transfer, as `steps.py` carries them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddpsim.collectives.network.fairness import LinkId
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation

MOST_TRANSFERS = 60_000
"""Single transfers of all collectives of one simulated run that are carried out, so that a command answers in 10 s.

A prediction carries out some 7 in 5 of its run's for its band too, at 12,000 (a tree of 128 ranks) to 50,000 a second
(in switches): `python -m studies.benchmarks.speed`, "the same on 16 ranks as NCCL picks, a tree". It moves no time, and
refuses.
"""


def refuse_too_many(transfers: int, what_has_them: str = "one collective has") -> None:
    """Refuse more single transfers than anybody waits for.

    Raises:
        InputError: where there are more than `MOST_TRANSFERS`; it names both numbers.
    """
    if transfers > MOST_TRANSFERS:
        what = f"{what_has_them} {transfers:,} single transfers, at most {MOST_TRANSFERS:,} are carried out in 10 s"
        remedy = "use `fidelity=flow`, which these transfers are the judge of, or fewer nodes or smaller messages"
        raise InputError(what, place="fidelity=steps", remedy=remedy)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Chunks `start` up to `stop` go from `source` to `target`.

    Attributes:
        reduce: whether the target adds them to its own; it takes them as they are otherwise.
        after: numbers of the transfers that must have arrived at the source before.
    """

    source: int
    target: int
    start: int
    stop: int
    reduce: bool
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferSchedule:
    """Transfers in an order in which they can be carried out one by one.

    Attributes:
        ranks: how many take part.
        chunks: how many equal parts the message is cut into.
    """

    ranks: int
    chunks: int
    transfers: tuple[Transfer, ...]


@dataclass(slots=True)
class Builder:
    """Collects transfers and finds what each must wait for: the arrivals of its chunks at its source."""

    ranks: int
    chunks: int
    transfers: list[Transfer] = field(default_factory=list)
    arrived: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def send(self, source: int, target: int, start: int, stop: int, *, reduce: bool) -> None:
        """Add the transfer of chunks `start` up to `stop`."""
        after = {number for chunk in range(start, stop) for number in self.arrived.get((source, chunk), ())}
        number = len(self.transfers)
        self.transfers.append(Transfer(source, target, start, stop, reduce, tuple(sorted(after))))
        for chunk in range(start, stop):
            # A copy supersedes what came before; contributions add up.
            before = self.arrived.get((target, chunk), []) if reduce else []
            self.arrived[target, chunk] = [*before, number]

    def build(self) -> TransferSchedule:
        """Return the transfers so far."""
        return TransferSchedule(self.ranks, self.chunks, tuple(self.transfers))


def ring(ranks: int, segments: int = 1) -> TransferSchedule:
    """Return reduce-scatter then all-gather around a ring, `segments` chunks to each rank's part.

    2(p-1) steps, in each of which every rank sends S/p bytes to the next (Patarasuk and Yuan 2009).
    """
    builder = Builder(ranks, ranks * segments)
    for step in range(2 * (ranks - 1)):
        for segment in range(segments):
            for rank in range(ranks):
                chunk = (rank - step) % ranks * segments + segment
                builder.send(rank, (rank + 1) % ranks, chunk, chunk + 1, reduce=step < ranks - 1)
    return builder.build()


def half(schedule: TransferSchedule, *, reduce: bool) -> TransferSchedule:
    """Return the part of an allreduce's schedule that sums, or the part after it that hands sums out."""
    numbers = [number for number, transfer in enumerate(schedule.transfers) if transfer.reduce is reduce]
    place = {number: index for index, number in enumerate(numbers)}
    transfers = []
    for number in numbers:
        transfer = schedule.transfers[number]
        after = tuple(place[earlier] for earlier in transfer.after if earlier in place)
        transfers.append(replace(transfer, after=after))
    return replace(schedule, transfers=tuple(transfers))


def periodic_ring(positions: int, steps: int, segments: int = 1) -> TransferSchedule:
    """Return the part of a ring that one of several nodes alike sees, its last position sending into its first.

    In a ring over n alike nodes of m ranks each node does what every other does; what enters from the node before is
    what leaves for the node after. So the timing of `positions` = m ranks over `steps` = 2(n m - 1) steps is that of
    the whole ring. All chunks have one number: the data flow is not that of an allreduce.
    """
    per_step = segments * positions
    transfers = [
        Transfer(
            rank,
            (rank + 1) % positions,
            segment,
            segment + 1,
            False,
            ((step - 1) * per_step + segment * positions + (rank - 1) % positions,) if step else (),
        )
        for step in range(steps)
        for segment in range(segments)
        for rank in range(positions)
    ]
    return TransferSchedule(positions, segments, tuple(transfers))


def ring_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return 2(p-1) alpha + 2(p-1)/p S beta."""
    return 2 * (ranks - 1) * (alpha_s + size_bytes / ranks * beta)


def halving_doubling(ranks: int) -> TransferSchedule:
    """Return recursive halving (reduce-scatter) and doubling (all-gather).

    Where p is not a power of two, the ranks beyond the largest one first fold into partners and are sent the result.
    """
    core = 1 << (ranks.bit_length() - 1)
    builder = Builder(ranks, core)
    for rank in range(core, ranks):
        builder.send(rank, rank - core, 0, core, reduce=True)
    spans = [(0, core)] * core
    distances = [core >> (level + 1) for level in range(core.bit_length() - 1)]
    for distance in distances:
        halves = [_halves(spans[rank], keep_upper=bool(rank & distance)) for rank in range(core)]
        for rank, (_, sent) in enumerate(halves):
            builder.send(rank, rank ^ distance, *sent, reduce=True)
        spans = [kept for kept, _ in halves]
    for distance in reversed(distances):
        for rank in range(core):
            builder.send(rank, rank ^ distance, *spans[rank], reduce=False)
        pairs = [(spans[rank], spans[rank ^ distance]) for rank in range(core)]
        spans = [(min(one[0], other[0]), max(one[1], other[1])) for one, other in pairs]
    for rank in range(core, ranks):
        builder.send(rank - core, rank, 0, core, reduce=False)
    return builder.build()


def recursive_doubling(ranks: int) -> TransferSchedule:
    """Return log2(p) exchanges of the whole message, at twice the distance each.

    Where p is not a power of two, the ranks beyond the largest one first fold into partners and are sent the result.
    """
    core = 1 << (ranks.bit_length() - 1)
    builder = Builder(ranks, 1)
    for rank in range(core, ranks):
        builder.send(rank, rank - core, 0, 1, reduce=True)
    before = {rank: tuple(builder.arrived.get((rank, 0), ())) for rank in range(core)}
    for level in range(core.bit_length() - 1):
        first = len(builder.transfers)
        for rank in range(core):
            # What both have so far goes each way: neither waits for what the other sends now.
            builder.transfers.append(Transfer(rank, rank ^ (1 << level), 0, 1, True, before[rank]))
        before = {rank: (*before[rank], first + (rank ^ (1 << level))) for rank in range(core)}
    for rank in range(core, ranks):
        builder.transfers.append(Transfer(rank - core, rank, 0, 1, False, before[rank - core]))
    return builder.build()


def from_root(parents: Sequence[int | None]) -> list[int]:
    """Return the ranks of a tree, every parent before its children."""
    children: dict[int | None, list[int]] = {}
    for rank, parent in enumerate(parents):
        children.setdefault(parent, []).append(rank)
    order, frontier = [], list(children[None])
    while frontier:
        order.extend(frontier)
        frontier = [child for rank in frontier for child in children.get(rank, ())]
    return order


def _halves(span: tuple[int, int], *, keep_upper: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the half that is kept and the half that is sent."""
    middle = (span[0] + span[1]) // 2
    lower, upper = (span[0], middle), (middle, span[1])
    return (upper, lower) if keep_upper else (lower, upper)


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


@dataclass(frozen=True, slots=True)
class Connection:
    """The way from one participant of a schedule to another.

    Attributes:
        latency_s: from the moment the source has the data to the first byte on the links.
        loads: bytes on each link per byte sent.
        rate_limit: bytes per second the ends can do.
        host_limit: bytes per second that threads of the ends keep up with; busy processors lower it.
        weight: share of a link against other connections of its lane.
    """

    latency_s: float
    loads: Mapping[LinkId, float]
    rate_limit: float = math.inf
    host_limit: float = math.inf
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ChannelSchedule:
    """One schedule, carried out on its own part of the message.

    Attributes:
        chunk_bytes: bytes of one chunk.
        connections: the way from source to target participant.
        window: transfers a pair may have under way, the ones still in their latency included.
        weight: share of a link against other traffic.
    """

    schedule: TransferSchedule
    chunk_bytes: float
    connections: Mapping[tuple[int, int], Connection]
    window: int = 1
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps are a collective as its single transfers, in lanes that run side by side after a launch.

    Attributes:
        launch_s: before the first transfer may start.
        capacities: bytes per second of links that only these transfers load.
    """

    launch_s: float
    lanes: tuple[ChannelSchedule, ...]
    capacities: Mapping[LinkId, float] = field(default_factory=dict)

    @property
    def transfers(self) -> int:
        """How many transfers they are, of all lanes."""
        return sum(len(lane.schedule.transfers) for lane in self.lanes)
