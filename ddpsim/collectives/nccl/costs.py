"""What NCCL's algorithms and protocols take on a layout, from the constants in force.

The time of an algorithm and protocol is a start, a latency for each step, and the bytes at the rate of the slower of
two: the links at the protocol's efficiency, and the channels in use at what one channel's threads can move. A tree's
channels move no more between nodes than NCCL has measured (`tuning.tree_max`). Trees and in-switch reductions pass the
message on in pieces, and the first has to reach the root and come back. Small messages use few channels: NCCL gives
each thread at least 8 bytes (LL, LL128; times p on an LL ring) or 64 (Simple), `enqueue.cc`. Read `EntryCosts.of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.loads import GROUPS, HOST, NET, NVLINK, NVSWITCH, Pattern
from ddpsim.collectives.nccl.pieces import (
    chain_pieces,
    copied_bytes,
    pieces,
    round_share,
    switch_channels,
    tree_fill_s,
)
from ddpsim.collectives.nccl.shape import TuningEntry
from ddpsim.collectives.nccl.tuning import generation, ll_max, tree_max
from ddpsim.collectives.nccl.versions import ALL_PAIRS, LL, LL128, NVLS, NVLS_TREE, RING, SIMPLE, TREE
from ddpsim.common.operation import Operation

_HOST_CHANNEL = 9.4e9
"""Bytes per second that one channel's threads move through host memory around a ring by Simple.

Their round trips are longer than to a card's memory. Four channels of four RTX PRO 6000 on one EPYC 9575F move 37.6
GB/s (NVIDIA/nccl pull request 2080); two of eight on two sockets 17.8 (`tests/data/tables/rtxpro6000_8gpu.csv`).
"""
_PULLING = 80
"""Compute capability whose GPUs read over NVLink what others have written to memory of their own, where all other GPUs
write to the next one's: `ncclTopoCheckP2p` in NCCL's `src/graph/paths.cc`."""
_FAST_LL_FROM = 2013
"""Release from which LL reaches nearly what NCCL counts inside a node of A100: 2.8.4, 2.10.3 and 2.12.12 reach less
than half of it; no table is of a release between. Of older GPUs no table of small sizes is of a later one."""
_THREADS = {LL: 512, LL128: 640, SIMPLE: 512}
_BYTES_PER_THREAD = {LL: 8, LL128: 8, SIMPLE: 64}
_MAX_CHANNELS = 32
"""Channels that a collective uses at most: as many as a ring search may find (`channels.MAX_CHANNELS`)."""

_CHANNEL_FACTORS = {LL128: (1.0, 1.0, 1.84, 2.0), SIMPLE: (1.1, 1.0, 1.61, 2.92)}
"""Of a channel's threads by generation of GPUs, beside Ampere's: NCCL's perChMaxRingLL128Bws and perChMaxTreeBws."""

_BOARD = 8
"""GPUs, and heads, of the boards that the tables are of which `nvls.start_s` was fitted to (`python -m
studies.accuracy.priors`)."""

CORNER = 8.0
"""Exponent of the norm that joins limits; large is a sharp corner.

Of two equal rates it leaves 2**(-1/8) = 92 %. Chosen by hand: `python -m studies.accuracy.by_hand` prints the error at
half and at double of it, on the tables kept here 21.1 and 21.2 %, beside 21.1 %.
"""


def soft_min(rates: Iterable[float]) -> float:
    """Return the least of some rates, less where others are near it."""
    return float(sum(rate**-CORNER for rate in rates) ** (-1 / CORNER))


def soft_max(times_s: Iterable[float]) -> float:
    """Return the most of some times, more where others are near it."""
    return float(sum(time_s**CORNER for time_s in times_s) ** (1 / CORNER))


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
        before_s: of the latency, what passes before the first step besides the start: an in-switch reduction's rounds
            that fill its pipe, copies into buffers of a ring that pulls.
        switch_share: factor on the rate of links to an NVSwitch, where the size of rounds changes it.
    """

    entry: TuningEntry
    channels: int
    latency_s: float
    rate: float
    ends: float = math.inf
    slack: float = 1.0
    pieces: int = 1
    net_ends: float = math.inf
    before_s: float = 0.0
    switch_share: float = 1.0

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
        # Rates are of message bytes. `links` is what the slowest links carry of them; limits after it are of the ends.
        algorithm, protocol = entry.algorithm, entry.protocol
        channels = self._channels(entry, size_bytes)
        rates = self._link_rates(entry)
        links = min(rates.values()) / self.share(operation)
        if algorithm == ALL_PAIRS:
            return Cost(entry, channels, self._get["pairs.start_s"], links)
        latency_s = self._latency_s(algorithm, protocol, operation)
        if algorithm in (NVLS, NVLS_TREE):
            # The switch adds, so that threads set no limit. Rounds of few bytes a head leave its links idle in between,
            # and of more heads than a board has take longer to fill the pipe.
            cut = self._cut(entry, channels, size_bytes)
            head_bytes = size_bytes / channels / self.layout.heads
            share = round_share(algorithm, head_bytes, self.layout.nodes, self._get["nvls.round_bytes"])
            rates = {**rates, NVSWITCH: rates[NVSWITCH] * share}
            links = min(rates.values()) / self.share(operation)
            rounds_s = self._rounds_s(size_bytes / cut, rates)
            latency_s += self._get["nvls.start_s"] + self._switch_fill_s(size_bytes / cut, rates) + rounds_s
            return Cost(entry, channels, latency_s, links, links, pieces=cut, before_s=rounds_s, switch_share=share)
        latency_s += self.start_s(protocol)
        sent = operation.sent(self.layout.ranks) if algorithm == RING else 2.0
        # Bytes that a rank sends for each of the message: a tree's rank sends to its parent and to a child, so 2.
        limits = [links, channels * self._channel_rate(protocol) / sent]
        if (algorithm, protocol) == (RING, SIMPLE) and self.layout.hop == HOST:
            limits[1] = min(limits[1], channels * _HOST_CHANNEL / sent)
        amd = bool(self.layout.shape.gcn)
        if protocol == LL and not amd:
            place = "net" if self.layout.nodes > 1 else "hopper" if self._hopper else self._place_of_ll
            limits.append(ll_max(self.layout.shape) * 1e9 * self._get[f"ll_max_share.{place}"] / sent)
        ends, net_ends = min(limits[1:]), math.inf
        if algorithm == TREE and protocol != LL and self.layout.nodes > 1 and not amd:
            net_ends = tree_max(self.layout.shape, protocol) * 1e9 / sent
            limits.append(net_ends)
        # Measured rates bend where two limits come near each other; a sharp corner would be too fast there.
        rate = soft_min(limits)
        copies_s = self._copies_s(entry, size_bytes / channels)
        cost = Cost(
            entry, channels, latency_s + copies_s, rate, ends, min(limits) / rate, net_ends=net_ends, before_s=copies_s
        )
        # A chain and a tree pass on whole pieces: the first has to go all the way before the pipe is full. LL passes on
        # each line as it comes, and a ring's ranks all send from the first step on.
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

    @property
    def _place_of_ll(self) -> str:
        """Which constant says how much of `llMaxBws` LL reaches in a node: releases before 2.13 reach less."""
        shape = self.layout.shape
        newer = shape.version >= _FAST_LL_FROM and generation(shape.sm) >= generation(80)
        return "newer" if newer else "node"

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
            pattern = self.pattern(entry)
            shares = {group: self.share_of_rate(entry, group) for group in pattern.rates}
            by_group = {group: rate * shares[group] for group, rate in pattern.rates.items()}
            for mixed in pattern.mixed:
                reached = {group: rate * shares[group] for group, rate in mixed.items()}
                slowest = min(reached, key=reached.__getitem__)
                by_group[slowest] = min(by_group[slowest], 1 / sum(1 / rate for rate in reached.values()))
            self._rates[key] = by_group
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

    @property
    def _pulls(self) -> bool:
        """Whether GPUs of one node pull over NVLink by Simple; LL and LL128 are written wherever it is."""
        layout = self.layout
        return layout.shape.sm == _PULLING and layout.hop in (NVLINK, NVSWITCH) and layout.nodes == 1

    def _copies_s(self, entry: TuningEntry, channel_bytes: float) -> float:
        """Return how long the links of a ring rest while its ranks copy into buffers of their own."""
        if not self._pulls or (entry.algorithm, entry.protocol) != (RING, SIMPLE):
            return 0.0
        return copied_bytes(channel_bytes, self.layout.ranks) / self._channel_rate(SIMPLE)

    def _channels(self, entry: TuningEntry, size_bytes: int) -> int:
        protocol = entry.protocol
        if entry.algorithm in (NVLS, NVLS_TREE):
            return switch_channels(size_bytes, self.layout.shape.sm, self.layout.nodes)
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
        if group == NET:
            part *= self.socket_share(pattern)
        if group in (NET, HOST) and layout.lone:
            part *= self._get["nic.lone"]
        return part

    def reached(self, cost: Cost) -> dict[str, float]:
        """Return the part of their rate that links of each kind reach as `cost` has it."""
        shares = {group: self.share_of_rate(cost.entry, group) for group in self.groups}
        return shares | {NVSWITCH: shares[NVSWITCH] * cost.switch_share} if NVSWITCH in shares else shares

    def socket_share(self, pattern: Pattern) -> float:
        """Return the part of a port's rate that the threads of its sockets move; 1 where they keep up with it."""
        if not self.layout.socket_threads or not pattern.port:
            return 1.0
        return min(1.0, self.layout.socket_threads * self._get["socket.thread"] / pattern.port / pattern.rates[NET])

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
        return self._get[f"{algorithm}.hop.{kind}.{protocol}_s"] * self._hop_factor(protocol)

    def _hop_factor(self, protocol: str) -> float:
        """Return by what a hop takes longer than on GPUs that write to the next one, before Hopper.

        What is pulled by Simple comes a way and back later. From Hopper on LL128 takes a part in a node; between nodes
        no less than what posting to the network takes, whatever the GPU.
        """
        if protocol == SIMPLE and self._pulls:
            return self._get["pull.hop"]
        if protocol == LL128 and self._hopper and self.layout.nodes == 1:
            return self._get["hopper.hop.ll128"]
        return self._latency_factor

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
