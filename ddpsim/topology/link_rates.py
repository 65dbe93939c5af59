"""A machine whose links have another rate: its NICs, all links of a kind, or one by its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from ddpsim.common.errors import UnknownNameError
from ddpsim.common.units import parse_bandwidth
from ddpsim.topology.declared import Cluster, DegradedLink
from ddpsim.topology.node import Degradation, Link, NodeTemplate, link_names
from ddpsim.topology.placement import Placement

AnyCluster = TypeVar("AnyCluster", bound=Cluster)

NIC = "nic"
"""Every NIC of every node."""

KINDS = ("nvlink", "xgmi", "pcie", "host_bridge", "socket")
"""Links inside a node that are named by their kind, all of that kind at once; of NVLinks and xGMI the rate is one's."""


def with_link_rate(topology: AnyCluster, link: str, rate: float | str) -> AnyCluster:
    """Return `topology` with another rate of `link`, in bytes per second and each direction, or as `25Gb/s`.

    Args:
        topology: the machine.
        link: `nic` for all NICs, `nic0` for one of each node, a kind of link (`nvlink`, `xgmi`, `pcie`, `host_bridge`,
            `socket`), or a link's own name, `gpu0-gpu3` or `leaf0-spine0`.
        rate: of a port, of one NVLink, of a link.

    Raises:
        UnknownNameError: the machine has no such link.
        InputError: a text that is no rate.
    """
    rate = parse_bandwidth(rate, "rate") if isinstance(rate, str) else rate
    if not has_link(topology, link):
        raise UnknownNameError.among("link", link, link_names_of(topology), place="link_rate")
    templates = [group.template for group in topology.groups]
    ports = {nic.name for template in templates for nic in template.nics}
    if link == NIC or link in ports:
        wanted = ports if link == NIC else {link}
        changed = [_with_ports(template, wanted, rate) for template in templates]
    elif link in KINDS:
        changed = [_with_kind(template, link, rate) for template in templates]
    else:
        return replace(topology, degraded=(*topology.degraded, DegradedLink(link, None, Degradation(rate))))
    groups = (replace(group, template=template) for group, template in zip(topology.groups, changed, strict=True))
    return replace(topology, groups=tuple(groups))


def has_link(topology: Cluster, link: str) -> bool:
    """Return whether `with_link_rate` knows `link` on `topology`."""
    if link in link_names_of(topology):
        return True
    try:
        link_names(link, _list_directed(topology))
    except UnknownNameError:
        return False
    return True


def link_names_of(topology: Cluster) -> list[str]:
    """Return the names that `with_link_rate` takes on `topology`: kinds first, then NICs, then links."""
    templates = [group.template for group in topology.groups]
    kinds = {link.kind for template in templates for link in template.links}
    nics = dict.fromkeys(nic.name for template in templates for nic in template.nics)
    links = dict.fromkeys("-".join(sorted(name.split(">"))) for name in _list_directed(topology))
    return [*([NIC] if nics else []), *(kind for kind in KINDS if kind in kinds), *nics, *links]


def _list_directed(topology: Cluster) -> Mapping[str, None]:
    inside = (link.name for group in topology.groups for link in group.template.links)
    return dict.fromkeys([*inside, *topology.trunks(topology.nodes)])


def _with_ports(template: NodeTemplate, ports: set[str], rate: float) -> NodeTemplate:
    nics = tuple(replace(nic, bandwidth=rate) if nic.name in ports else nic for nic in template.nics)

    def changed(link: Link) -> Link:
        return replace(link, bandwidth=rate) if link.kind == "nic" and {link.source, link.target} & ports else link

    return replace(template, nics=nics, links=tuple(map(changed, template.links)))


def _with_kind(template: NodeTemplate, kind: str, rate: float) -> NodeTemplate:
    links = (replace(link, bandwidth=rate * link.count) if link.kind == kind else link for link in template.links)
    return replace(template, links=tuple(links))


def with_faster_links(placement: Placement, kinds: Collection[str], factor: float) -> Placement:
    """Return `placement` on a machine whose links of some kinds have `factor` times their rates.

    Args:
        kinds: of links, and `nic` for ports; links between switches follow where the machine's file derives theirs.
    """
    topology = placement.topology
    groups = (replace(group, template=_with_faster(group.template, kinds, factor)) for group in topology.groups)
    changed = replace(topology, groups=tuple(groups))
    classes = tuple(replace(each, template=_with_faster(each.template, kinds, factor)) for each in placement.classes)
    return replace(placement, topology=changed, classes=classes, trunks=changed.trunks(placement.nodes))


def _with_faster(template: NodeTemplate, kinds: Collection[str], factor: float) -> NodeTemplate:
    nics = tuple(replace(nic, bandwidth=factor * nic.bandwidth) if NIC in kinds else nic for nic in template.nics)
    links = (
        replace(link, bandwidth=factor * link.bandwidth) if link.kind in kinds else link for link in template.links
    )
    return replace(template, nics=nics, links=tuple(links))
