"""The channels of a machine's nodes, for `ddpsim topo show --channels`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpsim.cli.output import table

if TYPE_CHECKING:
    from ddpsim.collectives.channels import Channel, Channels
    from ddpsim.topology.graph import Topology

Found = dict[str, "Channels"]


def channels_of(machine: Topology, *, pxn: bool = True, gpudirect: bool | None = None) -> Found:
    """Return the channels of each node template, on one node and, where it has NICs, among several.

    Args:
        pxn: whether a GPU may send to a far NIC through a GPU near it.
        gpudirect: overrides what the NICs say; None keeps it.
    """
    from ddpsim.collectives.channels import find_channels

    found: Found = {}
    for group in machine.groups:
        template = group.template
        found[f"{template.name}, one node"] = find_channels(template)
        if template.nics:
            cross = machine.fabric.kind != "rail"
            found[f"{template.name}, several nodes"] = find_channels(
                template, network=True, pxn=pxn, gpudirect=gpudirect, cross_nic=cross
            )
    return found


def channels_document(found: Found) -> list[dict[str, object]]:
    """Return the channels as JSON values."""
    return [
        {
            "where": where,
            "bus_bandwidth_Bps": channels.bus_bandwidth,
            "sustained_bandwidth_Bps": channels.sustained_bandwidth,
            "rings": [
                {
                    "gpus": list(ring.gpus),
                    "nic_in": ring.nic_in,
                    "nic_out": ring.nic_out,
                    "bandwidth_Bps": ring.bandwidth,
                    "route_kind": ring.kind,
                    "nic_route_kind": ring.nic_kind if ring.nic_in else None,
                }
                for ring in channels.rings
            ],
        }
        for where, channels in found.items()
    ]


def channels_text(found: Found) -> str:
    """Return the rings as text, equal ones once."""
    from ddpsim.units import format_bandwidth

    blocks = []
    for where, channels in found.items():
        counts: dict[Channel, int] = {}
        for ring in channels.rings:
            counts[ring] = counts.get(ring, 0) + 1
        total = format_bandwidth(channels.bus_bandwidth)
        heading = f"{where}: {len(channels.rings)} channels, {total} as NCCL counts it"
        rows = [
            (f"{n} x", _way(ring), format_bandwidth(ring.bandwidth), ring.kind, ring.nic_kind if ring.nic_in else "-")
            for ring, n in counts.items()
        ]
        blocks.append(f"{heading}\n{table(('', 'ring', 'each', 'farthest route', 'to the NIC'), rows, left=(1, 3, 4))}")
    return "\n\n".join(blocks)


def _way(ring: Channel) -> str:
    ends = ([ring.nic_in] if ring.nic_in else [], [ring.nic_out] if ring.nic_out else [])
    return " ".join([*ends[0], *ring.gpus, *ends[1]])
