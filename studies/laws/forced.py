"""What NCCL chooses for one job, forced on another: whether a choice is why a law is not kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ddpsim.collectives import execute
from ddpsim.collectives.channels import Channel, Channels, find_channels
from ddpsim.collectives.nccl import layout as nccl_layout
from ddpsim.collectives.nccl.costs import Cost
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Placement
from ddpsim.topology.node import Link, NodeTemplate
from ddpsim.topology.paths import Route
from ddpsim.topology.placement import place

CHOICES = ("algorithm and protocol", "channels")
"""What NCCL chooses: by its model (`src/graph/tuning.cc`), and by its search (`src/graph/search.cc`)."""


@contextmanager
def chosen_as_for(placement: Placement, choices: Sequence[str], *, per_rank: bool = False) -> Iterator[None]:
    """Have NCCL choose within the block as it does on `placement`, which has the nodes and GPUs that are simulated.

    Args:
        placement: of the other job.
        choices: of `CHOICES`. With `channels` the rings and chains found there stand on the links of the same names.
        per_rank: groups of any shape choose as all ranks of `placement` do, where there are fewer nodes or GPUs here.
    """
    machine = placement.topology
    costs = NcclTransport._costs

    def as_there(self: NcclTransport, operation: Operation, size_bytes: int) -> list[tuple[Cost, float]]:
        own = costs(self, operation, size_bytes)
        there = _there(self, placement, per_rank=per_rank)
        if there is None:
            return own
        allreduce = operation is Operation.ALLREDUCE
        entries = self._entries if allreduce else tuple(self._list_others(operation, size_bytes))
        known = {(entry.algorithm, entry.protocol): entry for entry in entries}
        picked = [
            (known[cost.entry.algorithm, cost.entry.protocol], weight)
            for cost, weight in costs(there, operation, size_bytes)
            if (cost.entry.algorithm, cost.entry.protocol) in known
        ]
        return [(self._cost.of(entry, size_bytes, operation), weight) for entry, weight in picked] or own

    def same_channels(template: NodeTemplate, gpus: Sequence[str], *, network: bool = False) -> Channels:
        there = next((group.template for group in machine.groups if group.template.name == template.name), None)
        if there is None:
            return find_channels(template, gpus, network=network)
        return _on_links(find_channels(there, gpus, network=network), template, gpus)

    execute.layout_of.cache_clear()
    try:
        with (
            patch.object(NcclTransport, "_costs", as_there if CHOICES[0] in choices else costs),
            patch.object(nccl_layout, "find_channels", same_channels if CHOICES[1] in choices else find_channels),
        ):
            yield
    finally:
        execute.layout_of.cache_clear()


def _there(transport: NcclTransport, other: Placement, *, per_rank: bool) -> NcclTransport | None:
    """Return NCCL on the other job's machine, of which every transport makes one; None where it has no such group."""
    kept: Any = transport.__dict__
    if "_there" not in kept:
        here = transport.layout.placement
        try:
            with patch.object(nccl_layout, "find_channels", find_channels):
                placed = other if per_rank else place(other.topology, here.nodes, here.gpus_per_node)
                layout = nccl_layout.Layout(placed, transport.layout.shape.version)
            kept["_there"] = NcclTransport(layout, transport.calibration, transport._options)
        except InputError:
            kept["_there"] = None
    found: NcclTransport | None = kept["_there"]
    return found


def _on_links(channels: Channels, template: NodeTemplate, gpus: Sequence[str]) -> Channels:
    """Return channels of one node on the links of another whose links have the same names."""
    links = {link.name: link for link in template.select_gpus(tuple(gpus)).links}

    def moved(channel: Channel) -> Channel:
        into, out = (None if end is None else _moved(end, links) for end in (channel.entry, channel.exit))
        return replace(channel, routes=tuple(_moved(route, links) for route in channel.routes), entry=into, exit=out)

    return replace(channels, rings=tuple(map(moved, channels.rings)), trees=tuple(map(moved, channels.trees)))


def _moved(route: Route, links: Mapping[str, Link]) -> Route:
    return replace(route, links=tuple(links[link.name] for link in route.links))
