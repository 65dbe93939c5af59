"""What NCCL's algorithms and protocols take on a layout, from the constants in force.

The time of an algorithm and protocol is a start, a latency for each step, and the bytes at the rate of the slower of
two: the links at the protocol's efficiency, and the channels in use at what one channel's threads can move. A tree's
channels move no more between nodes than NCCL has measured (`tuning.tree_max`). Trees and in-switch reductions pass the
message on in pieces, and the first has to reach the root and come back. Small messages use few channels: NCCL gives
each thread at least 8 bytes (LL, LL128; times p on an LL ring) or 64 (Simple), `enqueue.cc`.

A GPU passes a piece on when it has all of it. Simple sends chunks, halved for small messages so that the pipe fills
(`src/enqueue.cc`, `calcCollChunking`, 2.30). Of LL128 a piece is what all threads of a channel write at once, 20 warps
of 1920 bytes. LL passes on every 8 bytes as they arrive: the latency of its hops is all that fills its pipe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.loads import GROUPS, HOST, NET, NVLINK, NVSWITCH, Pattern
from ddpsim.collectives.nccl.shape import TuningEntry
from ddpsim.collectives.nccl.tuning import generation, ll_max, tree_max
from ddpsim.collectives.nccl.versions import ALL_PAIRS, LL, LL128, NVLS, NVLS_TREE, RING, SIMPLE, TREE
from ddpsim.operations import Operation

_STEPS = 8
"""Slots of a buffer between two GPUs: NCCL_STEPS. A chunk takes one, lines of LL128 share them."""

_STEP_BYTES, _LL128_STEP_BYTES = 1 << 19, 576_000
"""A slot of the buffers between two GPUs: of Simple 4 MiB / 8; of LL128 the data, 15 in 16, of 120 * 640 * 8 bytes."""
_LL128_BYTES = 20 * 1920
"""What 20 warps of a channel write at once."""
_MOST_NVLS_BYTES = 1 << 17
"""The largest chunk of an in-switch reduction: NCCL_NVLS_CHUNKSIZE by default."""
_HOST_CHANNEL = 9.4e9
"""Bytes per second that one channel's threads move through host memory around a ring by Simple.

Their round trips are longer than to a card's memory. Four channels of four RTX PRO 6000 on one EPYC 9575F move 37.6
GB/s (NVIDIA/nccl pull request 2080); two of eight on two sockets 17.8 (`tests/data/tables/rtxpro6000_8gpu.csv`).
"""
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


_THREADS = {LL: 512, LL128: 640, SIMPLE: 512}
_BYTES_PER_THREAD = {LL: 8, LL128: 8, SIMPLE: 64}
_MAX_CHANNELS = 32
"""Channels that a collective uses at most: as many as a ring search may find (`channels.MAX_CHANNELS`)."""

_CHANNEL_FACTORS = {LL128: (1.0, 1.0, 1.84, 2.0), SIMPLE: (1.1, 1.0, 1.61, 2.92)}
"""Of a channel's threads by generation of GPUs, beside Ampere's: NCCL's perChMaxRingLL128Bws and perChMaxTreeBws."""

_BOARD = 8
"""GPUs, and heads, of the boards that the tables are of which `nvls.start_s` was fitted to (`ddpsim priors`)."""

_CORNER = 8.0
"""Exponent of the norm that joins limits; large is a sharp corner.

Of two equal rates it leaves 2**(-1/8) = 92 %. Chosen by hand: `python -m studies.accuracy.by_hand` prints the error at
half and at double of it, on the tables kept here 21.1 and 21.2 %, beside 21.1 %.
"""


def soft_min(rates: Iterable[float]) -> float:
    """Return the least of some rates, less where others are near it."""
    return float(sum(rate**-_CORNER for rate in rates) ** (-1 / _CORNER))


def soft_max(times_s: Iterable[float]) -> float:
    """Return the most of some times, more where others are near it."""
    return float(sum(time_s**_CORNER for time_s in times_s) ** (1 / _CORNER))


def efficient_as(group: str, sm: int) -> str:
    """Return the group of links whose efficiency those of `group` have on GPUs of compute capability `sm`.

    From Ampere on an NVLink between two GPUs reaches what one through a switch does. NCCL counts Volta's as the same 20
    of 25 GB/s, and they carry more.
    """
    return NVSWITCH if group == NVLINK and generation(sm) >= generation(80) else group


@dataclass(frozen=True, slots=True)
class Cost:
    """What an entry takes: a latency, and the rate at which the bytes follow.

    Attributes:
        ends: message bytes per second that the channels in use move, whatever the links carry.
        slack: by what the lesser of links and ends is above `rate`, where both are near each other.
        pieces: into which a channel cuts its bytes where it passes on whole ones.
        net_ends: message bytes per second that they move between nodes, where that is known to be less.
        rounds_s: of the latency, what an in-switch reduction's rounds take to fill its pipe.
    """

    entry: TuningEntry
    channels: int
    latency_s: float
    rate: float
    ends: float = math.inf
    slack: float = 1.0
    pieces: int = 1
    net_ends: float = math.inf
    rounds_s: float = 0.0

    def time_s(self, size_bytes: float) -> float:
        """Return the time of `size_bytes`."""
        return self.latency_s + size_bytes / self.rate


class EntryCosts:
    """Costs of NCCL's entries on a layout.

    Args:
        get: constants by name, without `nccl.` or `rccl.`.
    """

    def __init__(self, layout: Layout, get: Mapping[str, float]) -> None:
        self.layout, self._get = layout, get
        self._hopper = not layout.shape.gcn and generation(layout.shape.sm) >= generation(90)
        self._latency_factor = get["hopper.latency"] if self._hopper else 1.0
        self._rates: dict[tuple[str, str], dict[str, float]] = {}
        self._hops: dict[str, tuple[list[list[float]], float]] = {}

    def of(self, entry: TuningEntry, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> Cost:
        """Return what an operation of `size_bytes` takes by `entry`."""
        algorithm, protocol = entry.algorithm, entry.protocol
        channels = self._channels(entry, size_bytes)
        rates = self._link_rates(entry)
        links = min(rates.values()) / self.share(operation)
        if algorithm == ALL_PAIRS:
            return Cost(entry, channels, self._get["pairs.start_s"], links)
        latency_s = self._latency_s(algorithm, protocol, operation)
        if algorithm in (NVLS, NVLS_TREE):
            cut = self._cut(entry, channels, size_bytes)
            rounds_s = self._rounds_s(size_bytes / cut, rates)
            latency_s += self._get["nvls.start_s"] + self._switch_fill_s(size_bytes / cut, rates) + rounds_s
            return Cost(entry, channels, latency_s, links, pieces=cut, rounds_s=rounds_s)
        latency_s += self.start_s(protocol)
        sent = operation.sent(self.layout.ranks) if algorithm == RING else 2.0
        limits = [links, channels * self._channel_rate(protocol) / sent]
        if (algorithm, protocol) == (RING, SIMPLE) and self.layout.hop == HOST:
            limits[1] = min(limits[1], channels * _HOST_CHANNEL / sent)
        amd = bool(self.layout.shape.gcn)
        if protocol == LL and not amd:
            place = "net" if self.layout.nodes > 1 else "hopper" if self._hopper else "node"
            limits.append(ll_max(self.layout.shape) * 1e9 * self._get[f"ll_max_share.{place}"] / sent)
        ends, net_ends = min(limits[1:]), math.inf
        if algorithm == TREE and protocol != LL and self.layout.nodes > 1 and not amd:
            net_ends = tree_max(self.layout.shape, protocol) * 1e9 / sent
            limits.append(net_ends)
        rate = soft_min(limits)
        cost = Cost(entry, channels, latency_s, rate, ends, min(limits) / rate, net_ends=net_ends)
        if operation.rooted:
            cut = chain_pieces(protocol, size_bytes / channels)
            fill_s = (self.layout.ranks - 2) * size_bytes / cut / rate if cut else 0.0
            return replace(cost, latency_s=latency_s + fill_s, pieces=cut)
        if algorithm == RING or protocol == LL:
            return cost
        cut = self._cut(entry, channels, size_bytes)
        inner, outer = self.hop_rates(cost)
        hops = (2 * (self.layout.per_node - 1), inner), (2 * self.layout.depth, outer)
        return replace(cost, latency_s=latency_s + tree_fill_s(size_bytes / cut, *hops, rate), pieces=cut)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Kinds of hops that its constants know: NCCL's know no xGMI, RCCL's no NVLink."""
        sm = self.layout.shape.sm
        return tuple(group for group in GROUPS if f"efficiency.{efficient_as(group, sm)}.{SIMPLE}" in self._get)

    def share(self, operation: Operation) -> float:
        """Return the part of an allreduce's bytes that a ring carries for an operation."""
        ranks = self.layout.ranks
        return operation.sent(ranks) / Operation.ALLREDUCE.sent(ranks)

    def _channel_rate(self, protocol: str) -> float:
        """Return the bytes per second that one channel's threads move."""
        factors = None if self.layout.shape.gcn else _CHANNEL_FACTORS.get(protocol)
        return self._get[f"channel.{protocol}"] * (factors[generation(self.layout.shape.sm)] if factors else 1.0)

    def _link_rates(self, entry: TuningEntry) -> Mapping[str, float]:
        """Return the message bytes per second that each group of links allows."""
        key = (entry.algorithm, entry.protocol)
        if key not in self._rates:
            self._rates[key] = {g: rate * self.share_of_rate(entry, g) for g, rate in self.pattern(entry).rates.items()}
        return self._rates[key]

    def _cut(self, entry: TuningEntry, channels: int, size_bytes: int) -> int:
        layout = self.layout
        channel_bytes = size_bytes / channels
        return pieces(
            entry.algorithm, entry.protocol, channel_bytes,
            per_node=layout.per_node, nodes=layout.nodes, heads=layout.heads,
        )  # fmt: skip

    def hop_rates(self, cost: Cost) -> tuple[float, float]:
        """Return the message bytes per second of a tree's hop inside a node and between nodes.

        Inside, the harmonic mean of the slowest chain's.

        Between nodes a hop carries half a piece of one tree, twice where a parent has two children.
        """
        chains, between = self._hop_links(cost.entry.protocol)
        slow = max((sum(1 / min(cost.ends, links) for links in chain) for chain in chains), default=0.0)
        inner = (self.layout.per_node - 1) / slow if slow else math.inf
        return inner / cost.slack, min(cost.ends, cost.net_ends, between) / cost.slack

    def _hop_links(self, protocol: str) -> tuple[list[list[float]], float]:
        """Return what the links of each hop of each chain allow, and of a hop between nodes."""
        if protocol not in self._hops:
            layout = self.layout

            def slowest(rates: Mapping[str, float]) -> float:
                return min(
                    (rate * self.efficiency(g, protocol, layout.tree) for g, rate in rates.items()), default=math.inf
                )

            alone = layout.carried * 2 / layout.fan
            between = {g: rate * alone for g, rate in layout.tree.rates.items() if g in (HOST, NET)}
            self._hops[protocol] = (
                [[slowest(rates) for rates in chain] for chain in layout.chains],
                slowest(between if layout.nodes > 1 else {}),
            )
        return self._hops[protocol]

    def _switch_fill_s(self, round_bytes: float, rates: Mapping[str, float]) -> float:
        """Return the time until a head's first piece has gone through both switches, without its time at the full rate.

        A round is a piece for each head; a GPU's link carries 1 + 1/m of it.
        """
        layout = self.layout
        piece = round_bytes / layout.heads
        inner = rates[NVSWITCH] * (1 + 1 / layout.per_node)
        outer = rates[NET] * layout.carried if NET in rates else math.inf
        return tree_fill_s(piece, (4, inner), (2 * layout.depth, outer), min(rates.values()))

    def _rounds_s(self, round_bytes: float, rates: Mapping[str, float]) -> float:
        """Return what rounds of more heads than a board has take longer to fill the pipe.

        A step of a channel is one for all its peers (`src/device/prims_simple.h`), so that a round moves on as a whole:
        out to the switch, summed and out again, in; and up and down each level of the tree between nodes. All but one
        of these stages come before the full rate. `nvls.start_s` is of boards, whose rounds are in it.
        """
        beyond = round_bytes * max(0.0, 1 - _BOARD / self.layout.heads)
        outer_s = 2 * self.layout.depth / (rates[NET] * self.layout.carried) if NET in rates else 0.0
        return beyond * (2 / rates[NVSWITCH] + outer_s)

    def _channels(self, entry: TuningEntry, size_bytes: int) -> int:
        protocol = entry.protocol
        least = _THREADS[protocol] * _BYTES_PER_THREAD[protocol]
        if (entry.algorithm, protocol) == (RING, LL):
            least *= self.layout.ranks
        return max(1, min(size_bytes // least, 2 * self.layout.rings, _MAX_CHANNELS))

    def pattern(self, entry: TuningEntry) -> Pattern:
        """Return what `entry` loads."""
        layout = self.layout
        others = {TREE: layout.tree, NVLS: layout.nvls, NVLS_TREE: layout.nvls_tree}
        # On a mesh rings load every link alike, as sending each to each does.
        return others.get(entry.algorithm, layout.ring)

    def efficiency(self, group: str, protocol: str, pattern: Pattern) -> float:
        """Return the part of a link's bytes that are the message's, of a port's also what its transport carries.

        Sockets carry of a port no more than their threads move.
        """
        layout = self.layout
        part = self._get[f"efficiency.{efficient_as(group, layout.shape.sm)}.{protocol}"]
        if group == NET and layout.nic_share:
            part *= self._get[f"nic.share.{layout.nic_share}"]
        if group == NET and layout.socket_threads and pattern.port:
            moved = layout.socket_threads * self._get["socket.thread"] / pattern.port
            part *= min(1.0, moved / pattern.rates[NET])
        if group in (NET, HOST) and layout.lone:
            part *= self._get["nic.lone"]
        return part

    def share_of_rate(self, entry: TuningEntry, group: str) -> float:
        """Return the part of a link's rate that `entry` reaches."""
        in_switch = entry.algorithm in (NVLS, NVLS_TREE) and group == NVSWITCH
        part = self._get["nvls.efficiency"] if in_switch else 1.0
        if entry.algorithm == ALL_PAIRS:
            part = self._get["pairs.efficiency"]
        return part * self.efficiency(group, entry.protocol, self.pattern(entry))

    def start_s(self, protocol: str) -> float:
        """Return the time before the first step."""
        return self._get[f"start.{protocol}_s"] * self._latency_factor

    def hop_s(self, algorithm: str, protocol: str) -> float:
        """Return the latency of a hop inside a node."""
        kind = self.layout.hop if self.layout.shape.nvlink else "pcie"
        return self._get[f"{algorithm}.hop.{kind}.{protocol}_s"] * self._latency_factor

    def net_s(self, algorithm: str, protocol: str) -> float:
        """Return the latency of a hop between nodes."""
        pattern = RING if algorithm == RING else TREE
        card_s = self.layout.nic_latency_s * self._get[f"nic.latency.{protocol}"]
        return self._get[f"{pattern}.hop.net.{protocol}_s"] + card_s

    def _latency_s(self, algorithm: str, protocol: str, operation: Operation) -> float:
        """Return the steps' latencies: those of a ring or chain, or to the root of the tree and back."""
        layout = self.layout
        outer = layout.crossings_of(operation) if algorithm == RING else 2 * layout.depth
        outer_s = outer * self.net_s(algorithm, protocol) if outer else 0.0
        if algorithm in (NVLS, NVLS_TREE):
            return outer_s
        inner = operation.steps(layout.ranks) - outer if algorithm == RING else 2 * (layout.per_node - 1)
        return inner * self.hop_s(algorithm, protocol) + outer_s
