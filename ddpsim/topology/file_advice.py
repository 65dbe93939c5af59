"""What a machine's file leaves open, or says that cannot be: what is taken of it, and what to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddpsim.errors import UnknownNameError
from ddpsim.topology.declared import Cluster
from ddpsim.topology.hardware import RDMA_FROM, SOCKET_BANDWIDTH
from ddpsim.topology.node import Nic, NodeTemplate, VertexKind
from ddpsim.units import format_bandwidth, format_count

_LANES = 4 / 3
"""What a slot's lanes carry over what NCCL counts them as (`PCIE_X16_BANDWIDTH`), at most: cards are built for that.

Cards of 200 Gb/s stand in sixteen lanes of PCIe 4, which it counts as 24 GB/s.
"""

_SLOTS = ("pcie", "host_bridge")
"""Kinds of links between a card and what its slot is of."""


def file_advice(cluster: Cluster, *, network: bool) -> list[str]:
    """Return a line for each thing that a machine's file leaves open.

    Args:
        network: whether several nodes talk, so that NICs matter.
    """
    templates = [group.template for group in cluster.groups]
    found = [*nic_advice(cluster), *(line for each in templates for line in _slots(each))] if network else []
    return [*found, *(line for each in templates for line in _processors(each))]


def nic_advice(cluster: Cluster) -> list[str]:
    """Return a line for each node template whose Ethernet cards may be RoCE: what is assumed, and what to write."""
    return [line for group in cluster.groups for line in _advice(group.template)]


def _advice(template: NodeTemplate) -> Iterator[str]:
    if template.gpus[0].model == "cpu":
        return
    for nics in _group_alike(nic for nic in template.nics if nic.kind == "ethernet" and nic.bandwidth >= RDMA_FROM):
        rate = format_bandwidth(nics[0].bandwidth)
        cards = f"{format_count(len(nics), 'card')} of {rate}"
        yield (
            f"{template.name} has {cards} of kind `ethernet`, taken as TCP through host memory, but most that fast do "
            "RDMA: write `kind: roce` if NCCL's log says NET/IB, `kind: tcp` if it says NET/Socket"
        )


def _group_alike(nics: Iterable[Nic]) -> Iterator[list[Nic]]:
    by_rate: dict[float, list[Nic]] = {}
    for nic in nics:
        by_rate.setdefault(nic.bandwidth, []).append(nic)
    yield from by_rate.values()


def _slots(template: NodeTemplate) -> Iterator[str]:
    """Yield a line for NICs that are faster than the slots they stand in, which then bind them."""
    up = [link for link in template.links if link.source_kind == VertexKind.NIC and link.kind in _SLOTS]
    slots = {link.source: link.bandwidth for link in up}
    narrow = [nic for nic in template.nics if nic.bandwidth > _LANES * slots.get(nic.name, nic.bandwidth)]
    for nics in _group_alike(narrow):
        name, rate = nics[0].name, format_bandwidth(nics[0].bandwidth)
        more = "" if len(nics) == 1 else f" and {len(nics) - 1} more"
        yield (
            f"{template.name} has {name}{more} of {rate} in a slot of {format_bandwidth(slots[name])}, which binds it: "
            f"correct its `rate`, or write its slot as `pcie: {{devices: {{{name}: ...}}}}`"
        )


def _processors(template: NodeTemplate) -> Iterator[str]:
    """Yield a line for processors that are not in the table, where the bandwidth between them is not stated."""
    if template.cpu.unknown:
        known = UnknownNameError.among("processor", template.cpu.model, SOCKET_BANDWIDTH)
        between = next(link.bandwidth for link in template.links if link.kind == "socket")
        yield (
            f"{template.name} has an {known.message} of {template.cpu.vendor!r}, so that its sockets are joined as "
            f"Skylake's, by {format_bandwidth(between)}: write `cpu: {{bandwidth: ...}}`; {known.remedy}"
        )
