"""Routes: kinds, lengths and bandwidths against what NCCL logged, and against a published matrix."""

import os
from pathlib import Path

import pytest

from ddpsim.topology.graph import NodeTemplate
from ddpsim.topology.importers import import_topology
from ddpsim.topology.paths import Route, find_paths
from ddpsim.topology.spec import load_topology, parse_topology

DATA = Path(os.environ.get("DDPSIM_DATA") or Path(__file__).parents[3].parent / "shared" / "data") / "topo"


def node(text: str) -> NodeTemplate:
    return parse_topology(f"name: x\nnode:\n{text}", "x.yaml").groups[0].template


def shipped(name: str) -> NodeTemplate:
    return load_topology(name).groups[0].template


def logged(route: Route) -> str:
    """The route as NCCL prints it: links, GB/s, kind."""
    return f"{len(route.links)}/{route.bandwidth / 1e9:g}/{route.kind}"


EIGHT_4090 = node(
    "  gpus: {count: 8, model: RTX4090}\n"
    "  pcie: {generation: 4, switches: [{socket: 0, gpus: [0, 1, 2, 3]}, {socket: 1, gpus: [4, 5, 6, 7]}]}\n"
    "  cpu: {sockets: 2, vendor: amd, model: milan, bandwidth: 10GB/s}\n"
)
FOUR_ETHERNET = node(
    "  gpus: {count: 4, model: P40}\n"
    "  pcie: {slots: [{socket: 0, gpus: [0, 1], nics: [[0, 1]]}, {socket: 1, gpus: [2, 3], nics: [[2, 3]]}]}\n"
    "  cpu: {sockets: 2, vendor: amd, model: rome, bandwidth: 6GB/s}\n"
    "  nics: [{count: 4, rate: 10Gb/s, kind: ethernet}]\n"
)


@pytest.mark.parametrize(
    ("template", "source", "target", "expected"),
    [
        (EIGHT_4090, "gpu4", "gpu0", "5/10/SYS"),  # nccl-tests#307
        (EIGHT_4090, "gpu4", "gpu5", "4/24/PHB"),  # nccl-tests#307: up to host memory and down again
        (FOUR_ETHERNET, "gpu3", "gpu0", "3/6/SYS"),  # nccl#601
        (FOUR_ETHERNET, "gpu3", "gpu2", "2/12/PHB"),  # nccl#601
        (shipped("dgx-a100"), "gpu3", "gpu0", "2/240/NVL"),  # nccl-tests#100, at 21 GB/s a link then
        (shipped("dgx-h100"), "gpu3", "gpu0", "2/370.8/NVL"),  # nccl#1519
    ],
)
def test_routes_as_nccl_logged_them(template: NodeTemplate, source: str, target: str, expected: str) -> None:
    assert logged(find_paths(template)[source, target]) == expected


@pytest.mark.parametrize(
    ("source", "target", "kind", "staged"),
    [
        ("gpu0", "gpu3", "NVL", False),
        ("gpu0", "gpu5", "NVB", False),  # no NVLink between them: through gpu1 or gpu4
        ("nic0", "gpu1", "PIX", False),
        ("gpu0", "nic0", "PIX", False),
        ("gpu0", "nic1", "PXN", False),  # gpu2 and gpu3 sit next to nic1
        ("nic1", "gpu0", "PHB", True),
        ("nic3", "gpu0", "SYS", True),
    ],
)
def test_kinds_of_routes_on_a_cube_mesh(source: str, target: str, kind: str, staged: bool) -> None:
    route = find_paths(shipped("dgx-1v"))[source, target]
    assert (route.kind, route.staged) == (kind, staged)


def test_of_routes_equally_short_the_widest_is_taken() -> None:
    route = find_paths(shipped("dgx-1v"))["gpu0", "gpu7"]
    assert [link.target for link in route.links] == ["gpu4", "gpu7"]  # 40 GB/s on both links; by gpu3 only 20
    assert route.bandwidth == pytest.approx(40e9)


def test_nested_switches_are_several() -> None:
    inner = "{switches: [{gpus: [0]}, {gpus: [1]}], nics: [0]}"
    template = node(f"  gpus: {{count: 2, model: A100}}\n  nics: [{{rate: 1Gb/s}}]\n  pcie: {{switches: [{inner}]}}\n")
    paths = find_paths(template)
    assert paths["gpu0", "gpu1"].kind == paths["gpu0", "nic0"].kind == "PXB"
    assert not paths["gpu0", "gpu1"].staged


@pytest.mark.parametrize(("count", "staged"), [(2, False), (3, True)])
def test_two_gpus_on_amd_reach_each_other_across_sockets(count: int, staged: bool) -> None:
    template = node(f"  gpus: {{count: {count}, model: A100}}\n  cpu: {{sockets: 2, vendor: amd, model: rome}}\n")
    route = find_paths(template)["gpu0", f"gpu{count - 1}"]
    assert (route.kind, route.staged) == ("SYS", staged)


def test_geforce_cards_meet_in_host_memory_unless_told_otherwise() -> None:
    pcie = "  pcie: {switches: [{gpus: [0, 1]}]}\n"
    assert find_paths(node("  gpus: {count: 2, model: GTX1080Ti}\n" + pcie))["gpu0", "gpu1"].staged
    told = node("  gpus: {count: 2, model: GTX1080Ti, peer_to_peer: PIX}\n" + pcie)
    assert not find_paths(told)["gpu0", "gpu1"].staged


def test_an_intel_host_bridge_costs_a_fifth_more_on_pcie_links_only() -> None:
    route = find_paths(shipped("4x1080ti-pcie"))["gpu0", "gpu1"]
    assert [(link.kind, load) for link, load in route.loads()] == [("host_bridge", 1.2)] * 2
    across = find_paths(shipped("4x1080ti-pcie"))["gpu0", "gpu2"]
    assert {load for _, load in across.loads()} == {1.0}


def test_kinds_to_nics_are_those_of_the_published_matrix() -> None:
    file = DATA / "smi" / "hcm_8xV100_pytorch_readme.txt"
    if not file.is_file():
        pytest.skip(f"no {file}: set DDPSIM_DATA to the folder of published tables and files")
    rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if "GPU0" in line or "NV" in line]
    ports = [column for column in rows[0] if column.startswith("mlx5_")]
    template = import_topology(file.read_text(encoding="utf-8"), "matrix").groups[0].template
    paths = find_paths(template, pxn=False)
    numbers = {name: nic for nic, name in template.extras}
    for row in rows[1:]:
        for port, word in zip(ports, row[9:13], strict=True):
            assert paths[row[0].lower(), numbers[port]].kind == word
