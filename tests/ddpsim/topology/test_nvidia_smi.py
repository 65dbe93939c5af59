"""Matrices of `nvidia-smi topo -m` as machines."""

from collections.abc import Callable

import pytest

from ddpsim.collectives.channels import find_channels
from ddpsim.common.errors import TopologyError
from ddpsim.topology.cluster import Topology
from ddpsim.topology.importers import import_topology
from ddpsim.topology.nvidia_smi import by_affinity
from ddpsim.topology.paths import find_paths

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


def square(count: int, word: Callable[[int, int], str]) -> str:
    rows = [
        f"GPU{a}  " + "  ".join("X" if a == b else word(a, b) for b in range(count)) + "  0-9" for a in range(count)
    ]
    return "\n".join(["  ".join(["", *(f"GPU{n}" for n in range(count))]), *rows])


LINKED = {
    "a pair by a bridge": (2, "NV4", "a30, a40, .*p100, rtx3090, .*rtxa6000", "rtxa6000", 48e9),
    "eight on switches": (8, "NV18", "b200, .*h100, h20, h200", "b200", 721.8e9),
    "fewer links than the whole": (8, "NV8", "a800, h800", "a800", 160e9),
    "four of a larger machine": (4, "NV6", ".*h100, .*v100", "v100-sxm3", 120e9),
    "links of which some are out of sight": (3, "NV5", "a100, .*h200", "a100", 100e9),
}


@pytest.mark.parametrize(("count", "word", "fitting", "choice", "bandwidth"), LINKED.values(), ids=LINKED)
def test_links_that_several_gpus_have_ask_for_the_gpu(
    count: int, word: str, fitting: str, choice: str, bandwidth: float
) -> None:
    text = square(count, lambda a, b: word)
    with pytest.raises(TopologyError, match=f"say `gpu`, one of {fitting}"):
        import_topology(text, "m.txt")
    topology = import_topology(text, "m.txt", gpu=choice)
    assert topology.compute_device.lower() == choice
    assert {link.bandwidth for link in topology.groups[0].template.links if link.kind == "nvlink"} == {bandwidth}


@pytest.mark.parametrize(("count", "word", "model"), [(8, "NV12", "A100"), (16, "NV6", "V100"), (4, "NV2", "V100")])
def test_links_that_one_gpu_has_tell_which_it_is(count: int, word: str, model: str) -> None:
    assert import_topology(square(count, lambda a, b: word), "m.txt").compute_device == model


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


@pytest.mark.parametrize(
    ("old", "new", "said", "sockets"),
    [
        ("8-15    1", "0-7     0", "GPU0 and GPU2 are SYS apart and of affinity 0-7 0", [0, 0, 0, 0]),
        (
            "NODE     X      SYS     NODE    8-15    1",
            "NODE     X      SYS     NODE    16-23    2",
            "GPU2 and GPU3",
            [0, 0, 1, 2],
        ),
    ],
)
def test_words_that_contradict_affinities_are_said_and_what_affinities_give(
    old: str, new: str, said: str, sockets: list[int]
) -> None:
    assert by_affinity(MATRIX, "m.txt", import_topology(MATRIX, "m.txt", gpu="t4")) is None
    text = MATRIX.replace(old, new)
    by_words = import_topology(text, "m.txt", gpu="t4")
    other = by_affinity(text, "m.txt", by_words)
    assert other is not None
    assert other[0].startswith(said)

    def places(topology: Topology) -> list[int]:
        paths = find_paths(topology.groups[0].template)
        return [int((paths.socket(f"gpu{number}") or "").removeprefix("cpu")) for number in range(4)]

    assert (places(by_words), places(other[1])) == ([0, 0, 1, 1], sockets)
    bare = "\n".join(line.split("    0-")[0].split("    8-")[0] for line in text.splitlines())
    assert by_affinity(bare.replace("16-23    2", ""), "m.txt", by_words) is None
