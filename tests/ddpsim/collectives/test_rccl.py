"""RCCL: its rings on a mesh, its choices, and the line between its constants and NCCL's."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from ddpsim.collectives.channels import find_channels
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.nccl.rccl import ALL_PAIRS_BYTES
from ddpsim.collectives.patterns import PATTERNS
from ddpsim.collectives.transport import Transport
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.operation import Operation
from ddpsim.topology.spec import load_topology, parse_topology
from tests.ddpsim.collectives.groups import group_on

MIB = 1 << 20


def transport(name: str, nodes: int = 1, algorithm: str = "auto") -> Transport:
    options = CollectiveOptions(isolated=False, algorithm=algorithm)
    return make_transport(load_topology(name).place(nodes), "nccl", None, options)


@pytest.mark.parametrize(("network", "times"), [(False, 4), (True, 4)])
def test_rings_of_a_mesh_take_every_link_equally_often(network: bool, times: int) -> None:
    rings = find_channels(load_topology("mi300x-8").groups[0].template, network=network).rings
    hops: Counter[tuple[str, str]] = Counter()
    for ring in rings:
        order = ring.gpus if network else (*ring.gpus, ring.gpus[0])
        assert len(set(ring.gpus)) == 8
        hops.update(pairwise(order))
    assert len(hops) == 56
    assert set(hops.values()) == {times}


def test_each_gpu_of_a_mesh_enters_and_leaves_by_its_own_nic() -> None:
    rings = find_channels(load_topology("mi300x-8").groups[0].template, network=True).rings
    ends = {(ring.nic_in, ring.gpus[0]) for ring in rings} | {(ring.nic_out, ring.gpus[-1]) for ring in rings}
    assert ends == {(f"nic{number}", f"gpu{number}") for number in range(8)}


def test_a_large_allreduce_is_bound_by_xgmi_on_a_node_and_by_nics_between() -> None:
    size = 4096 * MIB
    inside, across = (transport("mi300x-8", nodes).time_s(Operation.ALLREDUCE, size) for nodes in (1, 2))
    # Seven links of 48 GB/s, eight NICs behind 48 GB/s of PCIe, each at 0.93 of that.
    assert 2 * 7 / 8 * size / inside == pytest.approx(7 * 48e9 * 0.93, rel=0.01)
    assert 2 * 15 / 16 * size / across == pytest.approx(8 * 48e9 * 0.93, rel=0.02)


def test_rccl_chooses_by_size_as_its_source_says() -> None:
    node, two = transport("mi300x-8"), transport("mi300x-8", 2)
    assert node.choice(MIB).algorithm == node.choice(ALL_PAIRS_BYTES).algorithm == "all_pairs"
    assert node.choice(ALL_PAIRS_BYTES + 4).algorithm == "ring"
    # LL up to 1 MiB, LL128 up to 9 MiB, then Simple (tuning_model_5 of tuning.cc).
    assert [two.choice(size).protocol for size in (MIB, MIB + 4, 9 * MIB, 9 * MIB + 4)] == [
        "ll", "ll128", "ll128", "simple",
    ]  # fmt: skip
    assert transport("mi300x-8", 4).choice(30 * MIB).protocol == "ll128"


def test_boards_of_two_dies_run_neither_ll128_nor_sends_from_each_to_each() -> None:
    for nodes in (1, 2):
        boards = transport("mi250x-4", nodes)
        chosen = [boards.choice(1 << power) for power in range(10, 33)]
        assert {choice.protocol for choice in chosen} <= {"ll", "simple"}
        assert {choice.algorithm for choice in chosen} <= {"ring", "tree"}


@pytest.mark.parametrize("name", ["mi300x-8", "mi355x-8", "mi250x-4"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("operation", list(Operation))
def test_every_operation_takes_a_time_that_grows_with_its_bytes(name: str, nodes: int, operation: Operation) -> None:
    ours = transport(name, nodes)
    times = [ours.time_s(operation, size * MIB) for size in (16, 64, 256, 1024)]
    assert 0 < times[0] < times[1] < times[2] < times[3]


@pytest.mark.parametrize("name", ["mi300x-8", "mi355x-8", "mi250x-4"])
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2), (1, 3), (1, 4), (2, 1), (2, 3), (3, 4), (64, 1), (64, 8)])
def test_parts_of_nodes_and_many_nodes_have_rings(name: str, nodes: int, gpus: int) -> None:
    ours = make_transport(load_topology(name).place(nodes, gpus), "nccl", None, CollectiveOptions(isolated=False))
    assert ours.time_s(Operation.ALLREDUCE, MIB) < ours.time_s(Operation.ALLREDUCE, 256 * MIB) < 0.1


def test_a_search_counts_xgmi_as_rccl_does_and_the_bytes_go_at_what_the_link_carries() -> None:
    # Six rings of 24 GB/s: two over each way of each of the three pairs that a GPU has of four.
    slow, fast = (
        make_transport(load_topology(name).place(1, 4), "nccl", None, CollectiveOptions(isolated=False))
        for name in ("mi300x-8", "mi355x-8")
    )
    size = 4096 * MIB
    assert slow.time_s(Operation.ALLREDUCE, size) / fast.time_s(Operation.ALLREDUCE, size) == pytest.approx(
        1.2, rel=0.02
    )


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_patterns_that_no_library_picks_run_over_xgmi(pattern: str) -> None:
    assert 0 < transport("mi300x-8", 2, algorithm=pattern).time_s(Operation.ALLREDUCE, 64 * MIB) < 0.1


@pytest.mark.parametrize("size", [MIB, 64 * MIB])
def test_single_transfers_take_what_flows_do(size: int) -> None:
    placement = load_topology("mi300x-8").place()
    flow, steps = (group_on(placement, fidelity=fidelity).simulate_s(size) for fidelity in ("flow", "steps"))
    assert steps == pytest.approx(flow, rel=0.15)


def test_sends_from_each_to_each_cannot_run_on_nvidias_gpus() -> None:
    with pytest.raises(TopologyError, match="all_pairs cannot run on dgx-h100"):
        transport("dgx-h100", algorithm="all_pairs")


def test_nodes_of_both_vendors_have_no_library_in_common() -> None:
    text = "name: mixed\nnodes: {a: 1, b: 1}\ntemplates: {a: mi300x-8, b: dgx-h100}\nfabric: {kind: flat}\n"
    with pytest.raises(InputError, match="have no library in common"):
        make_transport(parse_topology(text, "mixed").place(), "nccl")
