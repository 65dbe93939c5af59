"""NCCL's rings as single transfers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddpsim.collectives import schedules
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.pieces import window_of
from ddpsim.collectives.nccl.versions import SIMPLE
from ddpsim.collectives.operation_schedules import build_ring
from ddpsim.collectives.routes import PlacedLink, total_by_key
from ddpsim.collectives.schedules import refuse_too_many
from ddpsim.collectives.transport import ChannelSchedule, Connection, Steps
from ddpsim.common.operation import Operation


@dataclass(frozen=True, slots=True)
class Timing:
    """What a transfer costs.

    Attributes:
        start_s: before the first step.
        hop_s, net_s: latency of a step inside a node, and between nodes.
        rate: bytes per second that all channels together move.
        net_rate: the same between nodes, of a tree.
        load_factors: bytes on a link for a byte of the chunk, by kind of hop.
        pieces: into which a chain cuts a message.
        window: pieces that may be under way between two GPUs of a ring.
    """

    start_s: float
    hop_s: float
    net_s: float
    rate: float
    net_rate: float
    load_factors: Mapping[str, float]
    pieces: int = 1
    window: int = window_of(SIMPLE)


_Way = tuple[float, list[tuple[PlacedLink, str, float]]]


def ring(timing: Timing, layout: Layout, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> Steps:
    """Return each ring's steps of an operation; where one node stands for all, its part of them.

    Rings of the same hops are one lane that carries the bytes of all.
    """
    lanes: dict[tuple[tuple[object, ...], ...], tuple[list[_Way], int]] = {}
    for index in range(layout.rings):
        ways = list(_list_hops(timing, layout, index))
        key = tuple(tuple(placed.name for placed, _, _ in links) for _, links in ways)
        lanes[key] = (ways, lanes[key][1] + 1 if key in lanes else 1)
    each = timing.pieces if operation.rooted else max(len(ways) for ways, _ in lanes.values())
    refuse_too_many(len(lanes) * each * operation.steps(layout.ranks))
    parts = tuple(_lane(timing, layout, size_bytes, operation, *lane) for lane in lanes.values())
    return Steps(timing.start_s, parts, layout.capacities)


def _lane(
    timing: Timing, layout: Layout, size_bytes: int, operation: Operation, ways: list[_Way], rings: int
) -> ChannelSchedule:
    share, ranks = rings / layout.rings, layout.ranks
    connections = {
        (place, (place + 1) % len(ways)): connection(timing, latency_s, way, timing.rate * share)
        for place, (latency_s, way) in enumerate(ways)
    }
    if len(ways) == ranks:
        whole = operation is Operation.ALLREDUCE
        schedule = schedules.ring(ranks) if whole else build_ring(operation, ranks, timing.pieces)
    else:
        schedule = schedules.periodic_ring(len(ways), operation.steps(ranks))
    parts = timing.pieces if operation.rooted else operation.parts(ranks)
    return ChannelSchedule(schedule, size_bytes * share / parts, connections, timing.window, weight=rings)


def connection(timing: Timing, latency_s: float, way: list[tuple[PlacedLink, str, float]], rate: float) -> Connection:
    """Return what a transfer over the links of `way` asks of them."""
    loads = total_by_key((placed.name, load * timing.load_factors[group]) for placed, group, load in way)
    return Connection(latency_s, loads, rate)


def _list_hops(timing: Timing, layout: Layout, index: int) -> Iterator[_Way]:
    """Yield the hop from each GPU of ring `index` to the next, node by node."""
    boundaries = dict(layout.wiring.boundaries)
    for node in layout.wiring.nodes:
        here = layout.channels_of(node).rings[index]
        for route in here.routes:
            yield timing.hop_s, list(layout.inside(node, route))
        if layout.nodes > 1:
            after = boundaries[node]
            there = layout.channels_of(after).rings[index]
            yield timing.net_s, list(layout.between(node, here, after, there))
