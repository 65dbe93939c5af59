from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.common import shipped
from ddpsim.topology.spec import load_topology


def test_every_shipped_machine_is_listed(ddpsim: Callable) -> None:
    rows = ddpsim("topo", "list", "--json").document["topologies"]
    assert [row["name"] for row in rows] == shipped.names("topology")
    for row in rows:
        assert len(load_topology(row["name"]).groups[0].template.gpus) == row["gpus_per_node"]


@pytest.mark.parametrize("name", shipped.names("topology"))
def test_every_shipped_machine_is_shown(ddpsim: Callable, name: str) -> None:
    shown = ddpsim("topo", "show", name, "--json").document
    assert shown["sources"]
    template = load_topology(name).groups[0].template
    assert len(shown["templates"][0]["gpus"]) == len(template.gpus)
    assert all(link["bandwidth_Bps"] > 0 for link in shown["templates"][0]["links"])


def test_channels_are_rings_over_every_gpu(ddpsim: Callable, tmp_path: Path) -> None:
    shown = ddpsim("topo", "show", "dgx-1v", "--channels", "--json").document["channels"]
    assert [entry["where"] for entry in shown] == ["dgx-1v, one node", "dgx-1v, several nodes"]
    for entry in shown:
        assert all(sorted(ring["gpus"]) == [f"gpu{n}" for n in range(8)] for ring in entry["rings"])
        assert entry["bus_bandwidth_Bps"] == pytest.approx(sum(ring["bandwidth_Bps"] for ring in entry["rings"]))
    text = ddpsim("topo", "show", "dgx-1v", "--channels", "--plot", tmp_path / "rings.png").out
    assert "as NCCL counts it" in text
    assert (tmp_path / "rings.png").read_bytes().startswith(b"\x89PNG")


MATRIX = """\tGPU0\tGPU1\tCPU Affinity
GPU0\t X \tNV2\t0-19
GPU1\tNV2\t X \t0-19
"""


def test_an_imported_matrix_loads_as_the_machine_it_was(ddpsim: Callable, tmp_path: Path) -> None:
    matrix, yaml = tmp_path / "smi.txt", tmp_path / "node.yaml"
    matrix.write_text(MATRIX)
    printed = ddpsim("topo", "import", matrix, "--gpu", "v100", "--name", "pair")
    assert printed.code == 0, printed
    assert str(tmp_path) not in printed.out
    yaml.write_text(printed.out)
    shown = ddpsim("topo", "show", yaml, "--json").document
    links = {(x["source"], x["target"]): x for x in shown["templates"][0]["links"]}
    assert links["gpu0", "gpu1"]["count"] == 2
    ddpsim("topo", "import", matrix, "--gpu", "v100", "--name", "pair", "-o", tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == printed.out


def test_an_import_says_on_standard_error_what_it_assumed(ddpsim: Callable, tmp_path: Path) -> None:
    matrix = tmp_path / "smi.txt"
    matrix.write_text("\tGPU0\tNIC0\nGPU0\t X \tPXB\nNIC0\tPXB\t X \n")
    imported = ddpsim("topo", "import", matrix, "--gpu", "v100", "-o", tmp_path / "node.yaml")
    assert imported.code == 0, imported
    assert "NIC speeds not in the matrix: 10 Gb/s" in imported.err


def test_an_import_advises_where_words_and_affinities_differ(ddpsim: Callable, tmp_path: Path) -> None:
    matrix = tmp_path / "topo.txt"
    matrix.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tSYS\t0-7\nGPU1\tSYS\tX\t0-7\n", encoding="utf-8")
    imported = ddpsim("topo", "import", matrix, "--gpu", "a40")
    assert re.search(r"advice: GPU0 and GPU1 are SYS apart .*bus bandwidth is \S+ GB/s, .* by affinities", imported.err)


def test_imports_that_cannot_be_read(ddpsim: Callable, tmp_path: Path) -> None:
    file = tmp_path / "smi.txt"
    file.write_text(MATRIX)
    ddpsim("topo", "import", file, "--gpu", "v1000").refused("v1000")
    ddpsim("topo", "import", tmp_path / "none").refused("none")


def test_a_machine_on_standard_input(ddpsim: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shipped.find("topology", "dgx-1v").read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    from_stdin = ddpsim("topo", "show", "-", "--json").document
    assert from_stdin == ddpsim("topo", "show", "dgx-1v", "--json").document
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    given = ("--workload", "resnet50", "--topology", "-", "--nodes", "1", "--json")
    assert ddpsim("predict", *given).document["topology"] == "dgx-1v"
    monkeypatch.setattr("sys.stdin", io.StringIO("nodes: ["))
    ddpsim("topo", "show", "-").refused("standard input")


def test_pxn_and_gpudirect_can_be_taken_away(ddpsim: Callable) -> None:
    def several(*options: str) -> list[dict]:
        shown = ddpsim("topo", "show", "dgx-h100", "--channels", "--gpus", "0,1,2,3", "--json", *options)
        return shown.document["channels"][1]["rings"]

    def kinds(rings: list[dict]) -> set[str]:
        return {ring["nic_route_kind"] for ring in rings}

    assert kinds(several()) == {"PXN"}
    assert "PXN" not in kinds(several("--no-pxn"))
    assert kinds(several("--no-pxn", "--no-gpudirect")) <= {"PHB", "SYS"}


def test_channels_of_one_gpu_pass_no_link_that_bounds_them(ddpsim: Callable) -> None:
    shown = ddpsim("topo", "show", "dgx-1v", "--channels", "--gpus", "3", "--json").document["channels"]
    assert [entry["sustained_bandwidth_Bps"] is None for entry in shown] == [True, False]


def test_channels_over_some_gpus_in_rank_order(ddpsim: Callable) -> None:
    shown = ddpsim("topo", "show", "dgx-1v", "--channels", "--gpus", "4,0,7,3", "--json").document["channels"]
    for entry in shown:
        assert all(sorted(ring["gpus"]) == ["gpu0", "gpu3", "gpu4", "gpu7"] for ring in entry["rings"])
    assert {ring["gpus"][0] for ring in shown[0]["rings"]} == {"gpu4"}
    for text, words in (("0,8", "GPU 8 is visible"), ("1,1", "name each GPU once"), ("x", "'x'"), ("0.5", "0.5")):
        ddpsim("topo", "show", "dgx-1v", "--channels", "--gpus", text).refused("--gpus", words)


def test_a_files_visible_devices_are_the_ones_shown(ddpsim: Callable, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("name: x\nnode: dgx-1v\nvisible_devices: [2, 3, 0]\n")
    shown = ddpsim("topo", "show", file, "--channels", "--json").document["channels"][0]
    assert {tuple(sorted(ring["gpus"])) for ring in shown["rings"]} == {("gpu0", "gpu2", "gpu3")}


def test_trees_are_shown_chain_by_chain_and_node_by_node(ddpsim: Callable, tmp_path: Path) -> None:
    plot = tmp_path / "trees.png"
    document = ddpsim("topo", "show", "dgx-1v", "--channels", "--nodes", 4, "--json", "--plot", plot).document
    assert document["trees"] == [[None, 2, 0, 2], [1, 3, 1, None]]
    several = document["channels"][1]
    assert [chain["nic"] for chain in several["tree_chains"]] == ["nic0", "nic1", "nic2", "nic3"]
    assert all(chain["bandwidth_Bps"] == pytest.approx(20e9) for chain in several["tree_chains"])
    alone = tmp_path / "one.png"
    text = ddpsim("topo", "show", "dgx-1v", "--channels", "--nodes", 4).out
    assert "double binary tree over 4 nodes" in text
    assert "tree 0: root 0; 0: 2; 2: 1 3" in text
    assert "double binary tree" not in ddpsim("topo", "show", "dgx-1v", "--channels", "--plot", alone).out
    assert len(plot.read_bytes()) > len(alone.read_bytes())
    ddpsim("topo", "show", "4x1080ti-pcie", "--channels", "--nodes", 2).refused("--nodes", "no network")


def test_fast_ethernet_is_asked_about(ddpsim: Callable) -> None:
    said = ddpsim("topo", "show", "8xl40s-pcie")
    assert "advice: 8xl40s-pcie has 4 cards of 25GB/s of kind `ethernet`" in said.out
    assert ddpsim("topo", "show", "8xl40s-pcie", "--json").document["advice"][0] in " ".join(said.out.split())
    assert ddpsim("topo", "show", "dgx-1v", "--json").document["advice"] == []


def test_the_transport_of_each_pair_is_shown(ddpsim: Callable) -> None:
    said = ddpsim("topo", "show", "2x4a100-1nic").out
    assert re.search(r"^gpu0 - gpu1, gpu0 - gpu2 +P2P over NVLink .*\nand 4 more$", said, re.MULTILINE)
    assert "bus bandwidth inside a node by P2P over NVLink: " in said
    shown = ddpsim("topo", "show", "2x4a100-1nic", "--json").document["transports"]
    assert shown["in_node"]["transports"] == ["P2P over NVLink"]
    assert [other["setting"] for other in shown["in_node"]["alternatives"]] == ["NCCL_P2P_DISABLE=1"]
    assert ddpsim("topo", "show", "lab-flat", "--json").document["transports"] is None
    one = ddpsim("topo", "show", "dgx-1v", "--nodes", 1, "--json").document["transports"]
    assert one["between_nodes"] is None
