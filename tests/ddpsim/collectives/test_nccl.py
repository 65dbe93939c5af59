from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.schedules import ring_s
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology, parse_topology
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.shaped import switched

PAIR = switched(4)
SIZES = (1024, 65536, MIB, 25 * MIB, 512 * MIB)


def collectives(placement: Placement, fidelity: str = "flow", algorithm: str = "auto", **more: Any) -> Collectives:
    return group_on(placement, fidelity=fidelity, algorithm=algorithm, **more)


MACHINES = {
    "dgx-1v": lambda: load_topology("dgx-1v").place(1),
    "4 of a dgx-1v": lambda: load_topology("dgx-1v").place(1, 4),
    "2 dgx-1v": lambda: load_topology("dgx-1v").place(2),
    "2 dgx-a100": lambda: load_topology("dgx-a100").place(2),
    "dgx-h100": lambda: load_topology("dgx-h100").place(1),
    "4x1080ti-pcie": lambda: load_topology("4x1080ti-pcie").place(1),
    "2 p3.8xlarge": lambda: load_topology("p3.8xlarge").place(2),
    "3 nodes of one GPU": lambda: parse_topology(PAIR, "pair").place(3, 1),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_flow_steps_and_closed_agree_where_nothing_contends(machine: str, algorithm: str) -> None:
    placement = MACHINES[machine]()
    for size_bytes in SIZES[:4]:
        flow = collectives(placement, "flow", algorithm).simulate_s(size_bytes)
        # Trees: test_tree_steps.
        if collectives(placement, algorithm=algorithm).choice(size_bytes).algorithm == "ring":
            assert flow == pytest.approx(collectives(placement, "steps", algorithm).simulate_s(size_bytes), rel=0.01)
        assert flow == pytest.approx(collectives(placement, "closed", algorithm).simulate_s(size_bytes), rel=1e-9)
        assert flow == pytest.approx(collectives(placement, algorithm=algorithm).estimate_s(size_bytes), rel=1e-9)


def test_one_node_standing_for_all_is_exact() -> None:
    placement = parse_topology(PAIR, "pair").place(3)
    for fidelity in ("flow", "steps"):
        folded = [collectives(placement, fidelity, "ring").simulate_s(size) for size in SIZES]
        expanded = [collectives(placement, fidelity, "ring", expand=True).simulate_s(size) for size in SIZES]
        assert folded == pytest.approx(expanded, rel=1e-3)


@pytest.mark.parametrize("fidelity", ["flow", "steps", "closed"])
def test_a_large_ring_equals_the_closed_form(fidelity: str) -> None:
    placement = parse_topology(PAIR, "pair").place(1)
    ring = collectives(placement, fidelity, "ring")
    efficiency = ring.calibration["nccl.efficiency.nvswitch.simple"]
    size_bytes = 64 << 30
    expected = ring_s(4, size_bytes, 0.0, 1 / (20e9 * efficiency))
    assert ring.simulate_s(size_bytes) == pytest.approx(expected, rel=0.005)


def test_a_degraded_link_slows_the_ring_through_it() -> None:
    degraded = PAIR + "nodes: 4\ndegraded: [{node: 2, link: nic0-network, bandwidth: 8Gb/s}]\n"
    for fidelity in ("flow", "steps"):
        whole = collectives(parse_topology(PAIR, "pair").place(4), fidelity, "ring").simulate_s(256 * MIB)
        slow = collectives(parse_topology(degraded, "pair").place(4), fidelity, "ring").simulate_s(256 * MIB)
        assert 8 < slow / whole < 10.5


def test_thousands_of_nodes_load_the_links_of_one() -> None:
    few = collectives(load_topology("dgx-a100").place(4))
    many = collectives(load_topology("dgx-a100").place(2048))
    assert len(many.network.capacities) == len(few.network.capacities)
    assert many.simulate_s(65536) > few.simulate_s(65536)


def test_small_messages_use_few_channels_and_large_ones_all() -> None:
    ring = collectives(load_topology("dgx-1v").place(1), algorithm="ring")
    channels = [ring.choice(size).channels for size in SIZES]
    assert channels == sorted(channels)
    assert (channels[0], channels[-1]) == (1, 12)


def test_back_to_back_and_isolated_differ_by_the_start() -> None:
    placement = load_topology("dgx-1v").place(1)
    isolated, row = (collectives(placement, isolated=each) for each in (True, False))
    started_s = isolated.calibration["nccl.isolated_s"]
    assert isolated.simulate_s(MIB) - row.simulate_s(MIB) == pytest.approx(started_s, rel=0.05)
    for operation in (Operation.ALLREDUCE, Operation.ALL_TO_ALL):
        alone_s, queued_s = (each.transport.time_s(operation, MIB) for each in (isolated, row))
        assert alone_s - queued_s == pytest.approx(started_s, rel=1e-3), operation


@pytest.mark.parametrize(
    ("machine", "protocol", "card_s"), [("dgx-a100", "ll", 0.6e-6), ("p4d.24xlarge", "simple", 75e-6)]
)
def test_a_rings_latency_is_its_start_its_hops_and_the_cards_own(machine: str, protocol: str, card_s: float) -> None:
    ring = collectives(load_topology(machine).place(2), algorithm="ring", isolated=False).transport
    demand, get = ring.allreduce(8), ring.calibration
    assert ring.choice(8).protocol == protocol
    # 30 hops, four of which lead to another node: a chunk comes by every eighth.
    net_s = get[f"nccl.ring.hop.net.{protocol}_s"] + card_s * get[f"nccl.nic.latency.{protocol}"]
    expected_s = get[f"nccl.start.{protocol}_s"] + 26 * get[f"nccl.ring.hop.nvswitch.{protocol}_s"] + 4 * net_s
    assert demand.latency_s + demand.stall_s == pytest.approx(expected_s, rel=1e-3)


def test_few_channels_move_what_their_threads_do_and_many_what_links_at_their_efficiency_do() -> None:
    placement = load_topology("dgx-1v").place(1)

    def grown_s(constant: str, size_bytes: int, factor: float) -> float:
        start = collectives(placement).calibration
        changed = start.with_values({constant: start[constant] * factor}, source="test")
        rows = (collectives(placement, algorithm="ring", calibration=each) for each in (start, changed))
        before, after = (each.estimate_s(size_bytes) for each in rows)
        return after / before

    large = 1024 * MIB
    assert grown_s("nccl.efficiency.nvlink.simple", large, 0.5) == pytest.approx(2, rel=0.02)
    assert grown_s("nccl.channel.simple", large, 2.0) == pytest.approx(1, rel=0.02)
    assert grown_s("nccl.channel.ll", 32768, 0.5) > 1.1
    assert grown_s("nccl.efficiency.nvlink.ll", 32768, 0.9) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("machine", "ranks", "longer"), [("p4d.24xlarge", 1, 2), ("p4d.24xlarge", 2, 1), ("dgx-a100", 1, 1)]
)
def test_one_rank_a_node_over_efa_has_a_share_of_the_rate(machine: str, ranks: int, longer: float) -> None:
    placement = load_topology(machine).place(2, ranks)
    start = collectives(placement).calibration
    halved = start.with_values({"nccl.nic.lone": start["nccl.nic.lone"] / 2}, source="test")
    times = [collectives(placement, calibration=each).estimate_s(4096 * MIB) for each in (start, halved)]
    assert times[1] / times[0] == pytest.approx(longer, rel=0.02)


@pytest.mark.parametrize(("machine", "group"), [("dgx-1v", "nvlink"), ("hgx-a100-4", "nvswitch")])
def test_nvlinks_between_gpus_reach_what_those_through_a_switch_do_from_ampere_on(machine: str, group: str) -> None:
    placement = load_topology(machine).place(1)
    start = collectives(placement, algorithm="ring").calibration
    halved = start.with_values(
        {f"nccl.efficiency.{group}.simple": start[f"nccl.efficiency.{group}.simple"] / 2}, source="test"
    )
    times = [
        collectives(placement, algorithm="ring", calibration=each).estimate_s(4096 * MIB) for each in (start, halved)
    ]
    assert times[1] / times[0] == pytest.approx(2, rel=0.02)


def test_times_rise_with_size_and_nodes() -> None:
    sizes = [1024 * 2**k for k in range(21)]
    for machine in MACHINES:
        one = collectives(MACHINES[machine]())
        rows = [(one.estimate_s(size), one.choice(size)) for size in sizes]
        for (before_s, before), (later_s, later) in pairwise(rows):
            same = before == later
            # NCCL does not always change over at the best size: eight V100 were measured to take 18 % less for 14 MiB
            # than for 13. Near a change a time lies between those of both sides.
            assert later_s > (0.97 if same else 2 / 3) * before_s, (machine, before, later)
    for algorithm in ("ring", "tree"):
        nodes = [load_topology("dgx-1v").place(n) for n in (1, 2, 4, 8, 64)]
        times = [collectives(placement, algorithm=algorithm).estimate_s(65536) for placement in nodes]
        assert times == sorted(times)


def test_in_switch_reduction_halves_what_a_ring_moves_and_goes_by_tree_between_nodes() -> None:
    one, two = (load_topology("dgx-h100").place(n) for n in (1, 2))
    large = 4096 * MIB
    nvls, ring = (collectives(one, algorithm=name).estimate_s(large) for name in ("nvls", "ring"))
    calibration = collectives(one).calibration
    # Each GPU's link carries 1 + 1/8 of the message instead of 2 * 7/8, in rounds of the largest chunk.
    idle = calibration["nccl.nvls.round_bytes"]
    share = calibration["nccl.nvls.efficiency"] * (1 + idle / 65536) / (1 + idle / 131072)
    assert ring / nvls == pytest.approx(1.75 / 1.125 * share, rel=0.02)
    across = collectives(two, algorithm="nvls_tree")
    assert across.choice(large).algorithm == "nvls_tree"
    assert nvls < across.estimate_s(large) < collectives(two, algorithm="ring").estimate_s(large)
    assert collectives(two).choice(large).algorithm == "nvls_tree"  # NCCL believes it at least as fast as a ring
    assert collectives(two).choice(1024).algorithm == "tree"


def test_only_the_switchs_links_lose_what_an_in_switch_reduction_loses() -> None:
    # Four nodes: each NIC carries the busiest node's two messages, shared by eight behind slots of 48 GB/s.
    four = collectives(load_topology("dgx-h100").place(4), algorithm="nvls_tree")
    size = 4096 * MIB
    net_s = size * 2 / (8 * 48e9 * four.calibration["nccl.efficiency.net.simple"])
    assert four.estimate_s(size) == pytest.approx(net_s, rel=0.02)


def test_a_tree_between_nodes_moves_what_nccl_has_measured_of_its_channels_and_no_more() -> None:
    large = 1 << 35
    # Eight channels of 24 GB/s on more than two nodes, 42.8 on two, each byte up and down; links carry twice that.
    for nodes, channel in ((2, 42.8), (4, 24.0), (16, 24.0)):
        placement = load_topology("dgx-b200").place(nodes)
        tree, ring = (collectives(placement, algorithm=name).estimate_s(large) for name in ("tree", "ring"))
        assert large / tree == pytest.approx(8 * channel * 1e9 / 2, rel=0.01)
        assert ring < tree


def test_a_broadcast_takes_one_start_and_half_the_steps_of_a_ring() -> None:
    placement = load_topology("dgx-1v").place(1)
    queued, alone = (collectives(placement, isolated=isolated).transport for isolated in (False, True))
    get = queued.calibration
    step_s = get["nccl.ring.hop.nvlink.ll_s"]
    assert queued.choice(8, Operation.BROADCAST).protocol == "ll"
    wanted_s = get["nccl.start.ll_s"] + 7 * step_s
    assert queued.time_s(Operation.BROADCAST, 8) == pytest.approx(wanted_s, rel=0.01)
    extra_s = alone.time_s(Operation.BROADCAST, 8) - queued.time_s(Operation.BROADCAST, 8)
    assert extra_s == pytest.approx(queued.calibration["nccl.isolated_s"], rel=1e-3)


def test_a_broadcast_runs_simple_where_the_network_keeps_no_order() -> None:
    efa = collectives(load_topology("p4d.24xlarge").place(2), isolated=False).transport
    assert {efa.choice(size, Operation.BROADCAST).protocol for size in SIZES} == {"simple"}


def test_a_card_that_writes_out_of_order_leaves_only_simple() -> None:
    old, new = (collectives(load_topology(name).place(2)) for name in ("p4d.24xlarge", "p5.48xlarge"))
    assert {old.choice(size).protocol for size in SIZES} == {"simple"}
    assert new.choice(1024).protocol == "ll"
    assert {collectives(load_topology("p4d.24xlarge").place(1)).choice(1024).protocol} == {"ll"}


def test_which_gpus_take_part_decides_how_fast_they_are() -> None:
    def seconds(*numbers: int) -> float:
        text = f"name: x\nnode: dgx-1v\nvisible_devices: {list(numbers)}\n"
        return collectives(parse_topology(text, "x.yaml").place()).estimate_s(256 * MIB)

    # Two NVLinks, one, none: GPUs 0 and 5 meet in host memory, across the sockets.
    assert seconds(0, 3) < 0.6 * seconds(0, 1) < 0.3 * seconds(0, 5)
