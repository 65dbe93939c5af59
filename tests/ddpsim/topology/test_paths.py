"""Routes: kinds, lengths and bandwidths against what NCCL logged, and against a published matrix."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from ddpsim.collectives.nccl.layout import find_switch_graph
from ddpsim.topology.declared import rejoin
from ddpsim.topology.graph import NodeTemplate
from ddpsim.topology.hardware import SHARED_UPLINK, SOCKET_ROOM
from ddpsim.topology.importers import import_topology
from ddpsim.topology.node import Vertex, VertexKind
from ddpsim.topology.paths import Route, find_paths
from ddpsim.topology.spec import load_topology
from tests.ddpsim.topology.templates import node_from, template_named

MATRIX = Path(__file__).parents[2] / "data" / "topo" / "hcm_8xV100_pytorch_readme.txt"


def logged(route: Route) -> str:
    """The route as NCCL prints it: links, GB/s, kind."""
    return f"{len(route.links)}/{route.bandwidth / 1e9:g}/{route.kind}"


EIGHT_4090 = node_from(
    "  gpus: {count: 8, model: RTX4090}\n"
    "  pcie: {generation: 4, switches: [{socket: 0, gpus: [0, 1, 2, 3]}, {socket: 1, gpus: [4, 5, 6, 7]}]}\n"
    "  cpu: {sockets: 2, vendor: amd, model: milan, bandwidth: 10GB/s}\n"
)
FOUR_ETHERNET = node_from(
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
        (template_named("dgx-a100"), "gpu3", "gpu0", "2/240/NVL"),  # nccl-tests#100, at 21 GB/s a link then
        (template_named("dgx-h100"), "gpu3", "gpu0", "2/370.8/NVL"),  # nccl#1519
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
    route = find_paths(template_named("dgx-1v"))[source, target]
    assert (route.kind, route.through_host) == (kind, staged)


def test_of_routes_equally_short_the_widest_is_taken() -> None:
    route = find_paths(template_named("dgx-1v"))["gpu0", "gpu7"]
    assert [link.target for link in route.links] == ["gpu4", "gpu7"]  # 40 GB/s on both links; by gpu3 only 20
    assert route.bandwidth == pytest.approx(40e9)


def test_nested_switches_are_several() -> None:
    inner = "{switches: [{gpus: [0]}, {gpus: [1]}], nics: [0]}"
    template = node_from(
        f"  gpus: {{count: 2, model: A100}}\n  nics: [{{rate: 1Gb/s}}]\n  pcie: {{switches: [{inner}]}}\n"
    )
    paths = find_paths(template)
    assert paths["gpu0", "gpu1"].kind == paths["gpu0", "nic0"].kind == "PXB"
    assert not paths["gpu0", "gpu1"].through_host


@pytest.mark.parametrize(("count", "staged"), [(2, False), (3, True)])
def test_two_gpus_on_amd_reach_each_other_across_sockets(count: int, staged: bool) -> None:
    template = node_from(f"  gpus: {{count: {count}, model: A100}}\n  cpu: {{sockets: 2, vendor: amd, model: rome}}\n")
    route = find_paths(template)["gpu0", f"gpu{count - 1}"]
    assert (route.kind, route.through_host) == ("SYS", staged)


SWITCHED_PAIR = "  gpus: {{count: 2, model: {}}}\n  pcie: {{switches: [{{gpus: [0, 1]}}]}}\n"


@pytest.mark.parametrize("model", ["RTX2080Ti", "RTX3090", "RTX4090", "RTX5090"])
def test_geforce_cards_meet_in_host_memory_unless_told_otherwise(model: str) -> None:
    assert find_paths(node_from(SWITCHED_PAIR.format(model)))["gpu0", "gpu1"].through_host
    told = SWITCHED_PAIR.format(f"{model}, peer_to_peer: PIX")
    assert not find_paths(node_from(told))["gpu0", "gpu1"].through_host


@pytest.mark.parametrize("model", ["GTX1080Ti", "A40", "L40S", "RTX6000Ada", "RTXPRO6000"])
def test_cards_whose_driver_allows_it_reach_each_other_below_a_switch(model: str) -> None:
    # Published access matrices: NVIDIA/nccl#257, nccl-tests#74, nccl#2079; the files in gpus/ name them.
    assert not find_paths(node_from(SWITCHED_PAIR.format(model)))["gpu0", "gpu1"].through_host


def test_a_bridge_of_nvlinks_joins_cards_that_have_no_peer_to_peer_over_pcie() -> None:
    route = find_paths(node_from(SWITCHED_PAIR.format("RTX3090") + "  nvlink: {pairs: [[0, 1, 4]]}\n"))["gpu0", "gpu1"]
    assert (route.kind, route.through_host) == ("NVL", False)


def test_an_intel_host_bridge_costs_a_fifth_more_on_pcie_links_only() -> None:
    route = find_paths(template_named("4x1080ti-pcie"))["gpu0", "gpu1"]
    assert [(link.kind, load) for link, load in route.loads()] == [("host_bridge", 1.2)] * 2
    across = find_paths(template_named("4x1080ti-pcie"))["gpu0", "gpu2"]
    assert {load for _, load in across.loads()} == {1.0}


def test_kinds_to_nics_are_those_of_the_published_matrix() -> None:
    text = MATRIX.read_text(encoding="utf-8")
    rows = [line.split() for line in text.splitlines() if "GPU0" in line or "NV" in line]
    ports = [column for column in rows[0] if column.startswith("mlx5_")]
    template = import_topology(text, "matrix").groups[0].template
    paths = find_paths(template, pxn=False)
    numbers = {name: nic for nic, name in template.extras}
    for row in rows[1:]:
        for port, word in zip(ports, row[9:13], strict=True):
            assert paths[row[0].lower(), numbers[port]].kind == word


@pytest.mark.parametrize("machine", ["dgx-1v", "dgx-a100", "dgx-h100", "4x1080ti-pcie"])
def test_routes_go_by_what_a_vertex_is_and_not_by_its_name(machine: str) -> None:
    template = load_topology(machine).groups[0].template
    # Switches keep theirs: of two, one under the other, the number tells which is above.
    names = {end.name: end.name if end.kind == VertexKind.PCIE else f"v{n}" for n, end in enumerate(ends(template))}
    links = [rejoin(link, *(Vertex(names[end.name], end.kind) for end in link.ends())) for link in template.links]
    renamed = replace(
        template,
        links=tuple(links),
        gpus=tuple(replace(gpu, name=names[gpu.name]) for gpu in template.gpus),
        nics=tuple(replace(nic, name=names[nic.name]) for nic in template.nics),
    )
    before, after = find_paths(template), find_paths(renamed)
    devices = [device.name for device in (*template.gpus, *template.nics)]
    for first, second in permutations(devices, 2):
        if {first, second} & {gpu.name for gpu in template.gpus}:
            old, new = before[first, second], after[names[first], names[second]]
            assert (new.kind, new.through_host, new.bandwidth) == (old.kind, old.through_host, old.bandwidth)
    gpus = tuple(gpu.name for gpu in template.gpus)
    old_graph = find_switch_graph(template, gpus, network=False)
    new_graph = find_switch_graph(renamed, [names[gpu] for gpu in gpus], network=False)
    assert (old_graph is None) == (new_graph is None) == (machine not in ("dgx-a100", "dgx-h100"))


def ends(template: NodeTemplate) -> list[Vertex]:
    return list(dict.fromkeys(end for link in template.links for end in link.ends()))


DIES = node_from(
    "  gpus: {count: 4, model: K80, peer_to_peer: LOC}\n"
    "  pcie: {generation: 3, switches: [{socket: 0, gpus: [0, 1]}, {socket: 1, gpus: [2, 3]}]}\n"
    "  cpu: {sockets: 2, vendor: intel, model: broadwell}\n"
)
FOUR_CARDS = node_from(
    "  gpus: {count: 4, model: L40S}\n"
    "  pcie: {generation: 4, slots: [{socket: 0, gpus: [0, 1]}, {socket: 1, gpus: [2, 3]}]}\n"
    "  cpu: {sockets: 2, vendor: intel, model: sapphire-rapids}\n"
)


@pytest.mark.parametrize(
    ("template", "target", "expected"),
    [
        (DIES, "gpu1", [1.0, SHARED_UPLINK, SHARED_UPLINK, 1.0]),
        (DIES, "gpu2", [1.0, SHARED_UPLINK, 1 / SOCKET_ROOM, SHARED_UPLINK, 1.0]),
        (FOUR_CARDS, "gpu1", [1.0, 1.0]),
        (FOUR_CARDS, "gpu2", [1.0, 1 / SOCKET_ROOM, 1.0]),
    ],
)
def test_staged_bytes_load_slots_once_and_uplinks_of_several_cards_more(
    template: NodeTemplate, target: str, expected: list[float]
) -> None:
    route = find_paths(template)["gpu0", target]
    assert route.through_host
    assert [load for _, load in route.moved()] == expected


def test_an_uplink_whose_cards_reach_each_other_carries_the_bytes_of_one() -> None:
    below = node_from(
        "  gpus: {count: 3, model: RTXA6000}\n"
        "  pcie: {generation: 4, switches: [{socket: 0, gpus: [0, 1]}], slots: [{socket: 0, gpus: [2]}]}\n"
        "  cpu: {sockets: 1, vendor: intel, model: skylake}\n"
    )
    assert [load for _, load in find_paths(below)["gpu1", "gpu2"].moved()] == [1.0, 1.0, 1.0]


def test_what_is_not_staged_from_card_to_card_moves_as_nccl_counts_it() -> None:
    for route in (find_paths(FOUR_ETHERNET)["gpu0", "nic3"], find_paths(template_named("dgx-a100"))["gpu3", "gpu0"]):
        assert list(route.moved()) == list(route.loads())
