"""xGMI: a mesh, pairs of boards, and what does not fit a vendor's GPUs."""

from __future__ import annotations

from itertools import combinations

import pytest

from ddpsim.common.errors import TopologyError
from ddpsim.topology.node import is_mesh
from ddpsim.topology.paths import find_paths
from ddpsim.topology.spec import load_topology, parse_topology

MESHES = ("mi300x-8", "mi325x-8", "mi355x-8")


def node(links: str, model: str = "MI300X", count: int = 8) -> str:
    return (
        f"name: m\nnode:\n  gpus: {{count: {count}, model: {model}}}\n  {links}\n  cpu: {{vendor: amd, model: genoa}}\n"
    )


@pytest.mark.parametrize("name", MESHES)
def test_eight_gpus_reach_each_other_by_one_link(name: str) -> None:
    template = load_topology(name).groups[0].template
    paths = find_paths(template)
    routes = [paths[pair] for pair in combinations([gpu.name for gpu in template.gpus], 2)]
    assert is_mesh(template)
    assert {(len(route.links), route.kind, route.links[0].kind) for route in routes} == {(1, "NVL", "xgmi")}


def test_two_dies_of_a_board_have_four_links_as_rccl_counts_them() -> None:
    template = load_topology("mi250x-4").groups[0].template
    links = {link.name: link for link in template.links}
    assert (links["gpu0>gpu1"].bandwidth, links["gpu0>gpu6"].bandwidth) == (4 * 36e9, 2 * 36e9)
    assert not is_mesh(template)


@pytest.mark.parametrize(
    ("links", "model", "said"),
    [
        ("xgmi: {mesh: 1}", "H100", "H100 has no xGMI"),
        ("nvswitch: {links_per_gpu: 18}", "MI300X", "MI300X has no NVLink"),
        ("nvlink: {pairs: [[0, 1, 1]]}", "MI250X", "MI250X has no NVLink"),
        ("xgmi: {bandwidth: 48GB/s}", "MI300X", "neither `mesh` nor `pairs`"),
        ("xgmi: {mesh: 1, pairs: [[0, 1, 1]]}", "MI300X", "both `mesh` and `pairs`"),
        ("xgmi: {pairs: [[0, 0, 1]]}", "MI250X", "no pair of different GPUs"),
    ],
)
def test_links_that_do_not_fit_are_refused(links: str, model: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        parse_topology(node(links, model), "m")
