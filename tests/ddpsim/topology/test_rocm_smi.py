"""What `rocm-smi --showtopo` prints as machines."""

from __future__ import annotations

from itertools import combinations

import pytest

from ddpsim.common.errors import TopologyError
from ddpsim.topology.importers import import_topology
from ddpsim.topology.node import is_mesh
from ddpsim.topology.spec import load_topology
from tests.ddpsim.topology.showtopo_text import matrix, showtopo

MESH = showtopo(8, lambda a, b: True, lambda number: number // 4)


@pytest.mark.parametrize(("gpu", "model"), [("mi300x", "MI300X"), ("mi355x", "MI355X")])
def test_eight_joined_each_to_each_are_a_mesh_on_their_sockets(gpu: str, model: str) -> None:
    topology = import_topology("$ rocm-smi --showtopo\n" + MESH, "-", gpu=gpu)
    template = topology.groups[0].template
    parents = {name: link.target for name, link in template.parents().items()}
    assert (topology.compute_device, topology.backend, is_mesh(template)) == (model, "rccl", True)
    assert [parents[f"gpu{number}"] for number in range(8)] == ["cpu0"] * 4 + ["cpu1"] * 4
    with pytest.raises(TopologyError, match="say `gpu`, one of mi300x, mi325x, mi355x"):
        import_topology(MESH, "-")


def test_two_fours_of_cards_are_joined_inside_a_four_alone() -> None:
    text = showtopo(8, lambda a, b: a // 4 == b // 4, lambda number: number // 4)
    links = import_topology(text, "-", gpu="mi210").groups[0].template.links
    joined = {(link.source, link.target) for link in links if link.kind == "xgmi"}
    assert len(joined) == 2 * 12
    assert ("gpu0", "gpu4") not in joined
    with pytest.raises(TopologyError, match="nothing tells which GPU has 8"):
        import_topology(text, "-")


def test_boards_of_two_dies_take_the_links_of_the_shipped_machine() -> None:
    shipped = {link.name: link for link in load_topology("mi250x-4").groups[0].template.links if link.kind == "xgmi"}
    pairs = {frozenset((link.source, link.target)) for link in shipped.values()}
    text = showtopo(8, lambda a, b: frozenset((f"gpu{a}", f"gpu{b}")) in pairs, lambda number: 0)
    topology = import_topology(text, "-")
    found = {link.name: link for link in topology.groups[0].template.links if link.kind == "xgmi"}
    assert topology.compute_device == "MI250X"
    assert found == shipped


def test_xgmi_over_several_hops_is_no_link() -> None:
    far = MESH.replace("Link Type", "\x1b[1mLink Type")
    pairs = {frozenset(pair) for pair in combinations(range(8), 2)} - {frozenset((2, 5))}
    hops = matrix("Hops between two GPUs", 8, lambda a, b: 1 if frozenset((a, b)) in pairs else 2)
    start = far.index("=" * 31 + " Hops")
    text = far[:start] + hops + far[far.index("=" * 31 + " \x1b[1mLink") :]
    with pytest.raises(TopologyError, match="no link joins gpu2 and gpu5: eight MI300X are a mesh of 28 links"):
        import_topology(text, "m.txt", gpu="mi300x")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("GPU1   XGMI         0            XGMI", "GPU1   XGMI         0            NVL", ["'NVL'", "GPU1", "GPU2"]),
        ("GPU1   XGMI         0            XGMI", "GPU1   XGMI         0            PCIE", ["GPU1 to GPU2 is PCIE"]),
        ("GPU7   XGMI", "GPUX   XGMI", ["no row for GPU7"]),
        ("GPU0         GPU1         GPU2 ", "GPU0         GPU1         GPU1 ", ["GPU1 is named 2 times"]),
        ("Link Type between two GPUs =", "Link Type between two GPUs\n=", []),
        ("GPU3   XGMI", "GPU3   XGMI\nGPU4   XGMI", ["1 of 8"]),
    ],
)
def test_bad_matrices_are_one_message(old: str, new: str, words: list[str]) -> None:
    assert old in MESH
    if not words:
        assert import_topology(MESH.replace(old, new), "m.txt", gpu="mi300x").compute_device == "MI300X"
        return
    with pytest.raises(TopologyError) as caught:
        import_topology(MESH.replace(old, new), "m.txt")
    for word in ["m.txt", *words]:
        assert word in str(caught.value)


def test_a_gpu_of_another_vendor_is_refused() -> None:
    with pytest.raises(TopologyError, match="H100 is not AMD's"):
        import_topology(MESH, "m.txt", gpu="h100")
