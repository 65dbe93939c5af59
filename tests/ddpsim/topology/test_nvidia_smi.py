"""Matrices of `nvidia-smi topo -m` as machines."""

import pytest

from ddpsim.collectives.channels import find_channels
from ddpsim.errors import TopologyError
from ddpsim.topology.importers import import_topology

MATRIX = """\x1b[4m        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity\x1b[0m
GPU0     X      PIX     SYS     SYS     PXB     SYS     0-7     0
GPU1    PIX      X      SYS     SYS     PXB     SYS     0-7     0
GPU2    SYS     SYS      X      NODE    SYS     PHB     8-15    1
GPU3    SYS     SYS     NODE     X      SYS     NODE    8-15    1
NIC0    PXB     PXB     SYS     SYS      X      SYS
NIC1    SYS     SYS     PHB     NODE    SYS      X

Legend:
  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect

NIC Legend:
  NIC0: mlx5_0
"""


def test_a_matrix_without_nvlinks_becomes_switches_and_slots() -> None:
    topology = import_topology("$ nvidia-smi topo -m\n" + MATRIX, "-", gpu="t4")
    parents = {name: link.target for name, link in topology.groups[0].template.parents().items()}
    assert parents["gpu0"] == parents["gpu1"] != parents["nic0"]
    assert parents[parents["gpu0"]] == parents[parents["nic0"]]
    assert parents["gpu2"] == parents["gpu3"] == parents["nic1"] == "cpu1"
    with pytest.raises(TopologyError, match="say `gpu`"):
        import_topology(MATRIX, "-")


def test_a_matrix_of_equal_links_beyond_a_gpus_own_is_a_switch() -> None:
    rows = [f"GPU{a}  " + "  ".join("X" if a == b else "NV12" for b in range(8)) + "  0-9" for a in range(8)]
    topology = import_topology("  ".join(["", *(f"GPU{n}" for n in range(8))]) + "\n" + "\n".join(rows), "m.txt")
    assert topology.compute_device == "A100"
    assert find_channels(topology.groups[0].template).bus_bandwidth == pytest.approx(240e9)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("GPU2    SYS", "GPU2    XYZ", ["line 4", "'XYZ'", "GPU0"]),
        ("GPU1    PIX      X      SYS     SYS     PXB     SYS     0-7     0", "GPU1  PIX X", ["line 3", "2 of 6"]),
        ("GPU3    SYS     SYS     NODE     X      SYS     NODE    8-15    1\n", "", ["no row for GPU3"]),
        ("GPU1    PIX", "GPU1    PXB", ["GPU0 to GPU1 is PIX", "PXB"]),
    ],
)
def test_bad_matrices_name_the_line(old: str, new: str, words: list[str]) -> None:
    assert old in MATRIX
    with pytest.raises(TopologyError) as caught:
        import_topology(MATRIX.replace(old, new), "m.txt", gpu="t4")
    for word in ["m.txt", *words]:
        assert word in str(caught.value)
