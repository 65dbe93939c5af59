"""A machine with some of it changed: the rest stands where it stood, or by the default."""

from __future__ import annotations

import pytest

from ddpsim.common.errors import InputError
from ddpsim.topology.cluster import Topology
from ddpsim.topology.spec import load_topology, parse_topology


def machine(node: str) -> Topology:
    return parse_topology(f"name: x\nnode: {node}\n", "x.yaml")


def test_a_generation_alone_changes_the_slots_and_leaves_the_tree() -> None:
    ours = machine("{machine: dgx-1v, pcie: {generation: 4}}").groups[0].template
    theirs = load_topology("dgx-1v").groups[0].template
    assert [link.name for link in ours.links] == [link.name for link in theirs.links]
    slot = next(link for link in ours.links if link.kind == "pcie" and link.source == "gpu0")
    assert slot.bandwidth == pytest.approx(2 * next(e for e in theirs.links if e.name == slot.name).bandwidth)
    own = parse_topology(
        "name: x\nnode:\n  gpus: {count: 4, model: V100}\n  pcie: {generation: 4}\n  nics: [{rate: 100Gb/s}]\n",
        "x.yaml",
    )
    assert {link.bandwidth for link in own.groups[0].template.links if link.kind == "host_bridge"} == {24e9}


def test_fewer_and_more_cards_need_no_tree() -> None:
    fewer = machine("{machine: dgx-1v, nics: [{count: 2, rate: 100Gb/s}]}").groups[0].template
    theirs = load_topology("dgx-1v").groups[0].template
    assert [nic.name for nic in fewer.nics] == ["nic0", "nic1"]
    assert set(fewer.links) <= set(theirs.links)
    more = machine("{machine: dgx-1v, nics: [{count: 6, rate: 100Gb/s}]}").groups[0].template
    assert [link.target for link in more.links if link.source == "nic5" and link.target != "network"] == ["cpu1"]


def test_fewer_gpus_keep_the_links_among_them() -> None:
    half = machine("{machine: dgx-1v, gpus: {count: 4, model: V100}, nics: [{count: 1, rate: 100Gb/s}]}")
    theirs = load_topology("dgx-1v").groups[0].template
    links = half.groups[0].template.links
    assert {link for link in links if link.kind == "nvlink"} == {
        link
        for link in theirs.links
        if link.kind == "nvlink" and max(int(e[3:]) for e in (link.source, link.target)) < 4
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("nics: [], pcie: {devices: {foo: 3}}", "devices"),
        ("nics: [], pcie: {devices: [1]}", "devices"),
        ("nics: [], pcie: {devices: {1: 2}}", "devices"),
        ("nics: [], pcie: [1]", "pcie"),
        ("nics: [], pcie: 3", "pcie"),
        ("gpus: {model: V100, count: 1000000000000}", "count"),
        ("gpus: {model: V100, count: .inf}", "count"),
        ("nics: [{rate: 100Gb/s, count: 1000000000000}]", "count"),
        ("gpus: {model: V100, count: 4}, cpu: {sockets: 1000000000000}", "sockets"),
    ],
)
def test_what_is_malformed_is_left_for_the_schema_to_name(change: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        machine(f"{{machine: dgx-1v, {change}}}")
