"""What a machine's file leaves open, or says that cannot be: what is taken of it, and what to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ddpsim.common.errors import UnknownNameError, list_few
from ddpsim.common.units import format_bandwidth, format_count
from ddpsim.topology.declared import Cluster
from ddpsim.topology.hardware import PCIE_X16_BANDWIDTH, RDMA_FROM, SOCKET_BANDWIDTH, gpu_facts
from ddpsim.topology.node import Link, Nic, NodeTemplate, Vertex, VertexKind
from ddpsim.topology.paths import KINDS, find_paths

_LANES = 4 / 3
"""What a slot's lanes carry over what NCCL counts them as (`PCIE_X16_BANDWIDTH`), at most: cards are built for that.

Cards of 200 Gb/s stand in sixteen lanes of PCIe 4, which it counts as 24 GB/s.
"""

_NARROW = PCIE_X16_BANDWIDTH[1] / 4
"""Bytes per second of four lanes of 2.5 GT/s: a GPU that trains does not hang on less, chosen by hand."""

_NAMED = 4
"""Devices that a line names."""

_SLOTS = ("pcie", "host_bridge")
"""Kinds of links between a card and what its slot is of."""


def file_advice(cluster: Cluster, *, network: bool) -> list[str]:
    """Return a line for each thing that a machine's file leaves open.

    Args:
        network: whether several nodes talk, so that NICs matter.
    """
    templates = [group.template for group in cluster.groups]
    of_network = [*nic_advice(cluster), *(line for each in templates for line in _slots(each))] if network else []
    return [*of_network, *(line for each in templates for line in (*_processors(each), *_rings(each)))]


def bottlenecks(template: NodeTemplate, *, network: bool) -> Iterator[tuple[bool, str, str, Mapping[str, Link]]]:
    """Yield where a node's PCIe tree may cost bandwidth: whether inside nodes too, what is there, what would be
    better, and the links that make it so.

    Args:
        template: with the GPUs of a job alone.
        network: whether several nodes talk, so that NICs matter.
    """
    parents = template.parents()
    both = {link.name: link for link in template.links}

    def widened(links: Iterable[Link], bandwidth: float) -> dict[str, Link]:
        names = (name for link in links for name in (link.name, f"{link.target}>{link.source}"))
        return {name: replace(both[name], bandwidth=bandwidth) for name in names}

    gpus = [gpu.name for gpu in template.gpus]
    # So little is no slot of a machine that trains: it is what a virtual machine shows in place of the tree that it
    # runs on, and whatever else could be said of that tree would be of the wrong one, hence nothing more is.
    narrow = [link for link in parents.values() if link.bandwidth < _NARROW]
    if held := [gpu for gpu in gpus if any(link in narrow for link in _upwards(parents, gpu))]:
        facts = gpu_facts(template.gpus[0].model)
        least = format_bandwidth(min(link.bandwidth for link in narrow))
        which = "all its GPUs" if len(held) == len(gpus) else list_few(held, _NAMED)
        yield (
            True,
            f"{which} behind PCIe of {least}, at which batches are copied too, as virtual machines show it: write the "
            "real tree under `pcie`",
            "in slots of 16 lanes",
            widened(narrow, PCIE_X16_BANDWIDTH[facts.pcie if facts else 3]),
        )
        return
    if not network:
        return
    # A NIC's own link is not shared. Cards pass a little more than NCCL counts for their lanes (`_LANES`), so that
    # only what is beyond that binds.
    shared: list[tuple[Link, list[Nic]]] = []
    for link in parents.values():
        nics = [nic for nic in template.nics if nic.name != link.source and link in _upwards(parents, nic.name)]
        if len(nics) > 1 and sum(nic.bandwidth for nic in nics) > _LANES * link.bandwidth:
            shared.append((link, nics))
    if shared:
        link, nics = shared[0]
        more = f", and others likewise behind {len(shared) - 1} more" if len(shared) > 1 else ""
        yield (
            False,
            f"{list_few([nic.name for nic in nics], _NAMED)} behind one PCIe link ({link.source} - {link.target}) of "
            f"{format_bandwidth(link.bandwidth)}{more}",
            "if each had a link of its own",
            {name: new for link, nics in shared for name, new in widened([link], len(nics) * link.bandwidth).items()},
        )
    yield from _far_nics(template, gpus)


def _upwards(parents: Mapping[str, Link], device: str) -> Iterator[Link]:
    """Yield the links from a device to its socket."""
    while device in parents:
        yield parents[device]
        device = parents[device].target


def _far_nics(template: NodeTemplate, gpus: Sequence[str]) -> Iterator[tuple[bool, str, str, Mapping[str, Link]]]:
    """Yield the GPUs whose NICs are all on another socket, and the links that put them on the NIC's."""
    paths, parents = find_paths(template, pxn=False), template.parents()
    nearest = {
        gpu: min((nic.name for nic in template.nics), key=partial(paths.distance, gpu))
        for gpu in (gpus if template.nics else ())
    }
    far = {gpu: nic for gpu, nic in nearest.items() if KINDS[paths.distance(gpu, nic)] == "SYS"}
    moved: dict[str, Link] = {}
    for gpu, nic in far.items():
        *_, top = _upwards(parents, gpu)
        root, socket = Vertex(top.source, top.source_kind), Vertex(paths.socket(nic) or top.target, VertexKind.CPU)
        for name, source, target in ((top.name, root, socket), (f"{top.target}>{top.source}", socket, root)):
            moved[name] = Link.between(source, target, top.kind, top.bandwidth, top.latency_s)
    if far:
        alone = format_bandwidth(min(paths[gpu, nic].bandwidth for gpu, nic in far.items()))
        what = f"{list_few(list(far), _NAMED)} on another socket than every NIC, which one alone reaches at {alone}"
        yield False, what, "if all were on a NIC's socket", moved


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


def _rings(template: NodeTemplate) -> Iterator[str]:
    """Yield a line for rings that are stated and pass fewer GPUs than there are: jobs on all have others."""
    fewest = min((sum(gpu.name in ring for gpu in template.gpus) for ring in template.rings), default=0)
    if 0 < fewest < len(template.gpus):
        yield (
            f"{template.name} has `rings` over {fewest} of its {len(template.gpus)} GPUs, which a job on all does not "
            "use: write those of all, or leave them out and they are searched"
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
