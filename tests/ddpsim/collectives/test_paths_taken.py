"""What other transports would give: what a machine whose file states them gives."""

import pytest

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl.paths_taken import ChosenPaths, PathSegment, paths_advice, paths_taken
from ddpsim.topology.graph import Topology
from ddpsim.topology.spec import load_topology, parse_topology

BOX = (
    "name: x\nnodes: 2\nnode:\n  gpus: {{count: 4, model: {gpu}}}\n"
    "  pcie: {{generation: 4, switches: [{{gpus: [0, 1], nics: [0]}}, {{gpus: [2, 3]}}]}}\n"
    "  nics: [{{rate: 100Gb/s, kind: {nic}}}]\n"
)


def box(gpu: str = "A40", nic: str = "roce") -> Topology:
    return parse_topology(BOX.format(gpu=gpu, nic=nic), "x.yaml")


def taken(machine: Topology, nodes: int | None = None) -> ChosenPaths:
    found = paths_taken(machine.place(nodes))
    assert found is not None
    return found


def inside(machine: Topology) -> PathSegment:
    stretch = taken(machine).in_node
    assert stretch is not None
    return stretch


def between(machine: Topology) -> PathSegment:
    stretch = taken(machine).between_nodes
    assert stretch is not None
    return stretch


def others(stretch: PathSegment) -> dict[str, float]:
    return {other.name: other.busbw for other in stretch.alternatives}


def test_another_reach_gives_what_a_file_that_states_it_gives() -> None:
    assert others(inside(box())) == {
        "P2P off": inside(box("A40, peer_to_peer: LOC")).busbw,
        "P2P everywhere": inside(box("A40, peer_to_peer: SYS")).busbw,
    }
    assert others(inside(box()))["P2P off"] < inside(box()).busbw < others(inside(box()))["P2P everywhere"]


def test_without_gpudirect_and_as_roce_likewise() -> None:
    assert others(between(box())) == {"GPUDirect off": between(box(nic="roce, gpudirect: false")).busbw}
    assert others(between(box(nic="ethernet"))) == {"RoCE": between(box()).busbw}
    assert others(between(box(nic="tcp"))) == {}
    assert between(box(nic="tcp")).busbw == between(box(nic="ethernet")).busbw


def test_a_card_whose_driver_refuses_needs_another_driver() -> None:
    settings = {other.name: other.setting for other in inside(box("RTX4090")).alternatives}
    assert settings == {"P2P everywhere": "a driver that allows it"}


def test_where_a_file_says_that_there_is_none_its_own_key_is_named() -> None:
    settings = {other.name: other.setting for other in inside(box("A40, peer_to_peer: LOC")).alternatives}
    assert settings == {"P2P everywhere": "peer_to_peer: SYS in its file"}


def test_a_switch_reduces_only_where_gpus_reach_each_other() -> None:
    # NVLS maps every GPU's memory to the others: without P2P there is none.
    stretch = inside(load_topology("dgx-h100"))
    assert others(stretch)["P2P off"] < 0.1 * stretch.busbw


@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 1, 1), ("lab-flat", 2, 1), ("loopback", 1, 1)])
def test_one_rank_and_plain_hosts_have_none(machine: str, nodes: int, gpus: int) -> None:
    assert paths_taken(load_topology(machine).place(nodes, gpus)) is None


def test_one_rank_a_node_has_the_network_alone() -> None:
    found = paths_taken(load_topology("dgx-h100").place(2, 1))
    assert found is not None
    assert found.in_node is None
    assert found.between_nodes is not None
    assert found.document()["in_node"] is None


def test_constants_in_force_count() -> None:
    placement = box("RTX4090").place(1)
    priors, name = Calibration.priors("nccl"), "nccl.efficiency.host.simple"
    found = paths_taken(placement, priors.with_values({name: priors[name] / 2}, source="test"))
    assert found is not None
    assert found.in_node is not None
    assert found.in_node.busbw == pytest.approx(inside(box("RTX4090")).busbw / 2, rel=0.02)


def test_lines_say_transport_rate_and_what_else_there_is() -> None:
    first, second, advice = taken(box(nic="ethernet")).lines()
    assert first.startswith("allreduce bus bandwidth inside a node by host memory (SHM) and P2P over PCIe: ")
    assert "with P2P off (NCCL_P2P_DISABLE=1)" in first
    assert second.startswith("allreduce bus bandwidth between nodes by NET/Socket through host memory: ")
    assert "with RoCE (kind: roce)" in second
    assert advice.startswith("advice: x has 1 card of 12.5GB/s of kind `ethernet`")


def test_other_choices_of_nodes_larger_than_a_rack_are_not_searched() -> None:
    text = "name: large\nnode:\n  gpus: {count: COUNT, model: B200}\n  nvswitch: {links_per_gpu: 18}\n"
    machines = [parse_topology(text.replace("COUNT", str(count)), "large.yaml") for count in (72, 73)]
    segments = [taken(machine).in_node for machine in machines]
    assert [bool(segment and segment.alternatives) for segment in segments] == [True, False]


TREE = (
    "name: x\nnodes: 2\nnode:\n  gpus: {{count: 2, model: A100-PCIe}}\n  pcie: {{generation: 4, {tree}}}\n"
    "  cpu: {{sockets: 2, model: broadwell}}\n  nics: [{{count: 2, rate: 200Gb/s}}]\nfabric: {{kind: flat}}\n"
)
BOTTLENECKS = {
    "each GPU on one lane": (
        "devices: {gpu0: 187.5MB/s, gpu1: 187.5MB/s}, slots: [{gpus: [0, 1], nics: [0, 1]}]",
        "slots: [{gpus: [0, 1], nics: [0, 1]}]",
        "all its GPUs behind PCIe of 187.5MB/s, at which batches are copied too, as virtual machines show it",
        "in slots of 16 lanes",
    ),
    "one GPU on one lane": (
        "devices: {gpu1: 187.5MB/s}, slots: [{gpus: [0, 1], nics: [0, 1]}]",
        "slots: [{gpus: [0, 1], nics: [0, 1]}]",
        "gpu1 behind PCIe of 187.5MB/s",
        "in slots of 16 lanes",
    ),
    "two cards behind one link": (
        "slots: [{gpus: [0, 1]}], switches: [{nics: [0, 1], bandwidth: 3GB/s}]",
        "slots: [{gpus: [0, 1]}], switches: [{nics: [0], bandwidth: 3GB/s}, {nics: [1], bandwidth: 3GB/s}]",
        "nic0, nic1 behind one PCIe link (pcie0 - cpu0) of 3GB/s",
        "if each had a link of its own",
    ),
    "GPUs far from the cards": (
        "slots: [{socket: 1, gpus: [0, 1]}, {nics: [0, 1]}]",
        "slots: [{gpus: [0, 1], nics: [0, 1]}]",
        "gpu0, gpu1 on another socket than every NIC, which one alone reaches at 6GB/s",
        "if all were on a NIC's socket",
    ),
}


@pytest.mark.parametrize(("tree", "better", "what", "otherwise"), BOTTLENECKS.values(), ids=BOTTLENECKS)
def test_a_bottleneck_of_the_tree_costs_what_a_file_without_it_gains(
    tree: str, better: str, what: str, otherwise: str
) -> None:
    here, there = (parse_topology(TREE.format(tree=each), "x.yaml") for each in (tree, better))
    (line,) = taken(here).advice
    before, after = (f"{between(each).busbw / 1e9:.3g} GB/s" for each in (here, there))
    gain = f"; allreduce bus bandwidth is {before}, {after} {otherwise}"
    assert line.startswith(f"x has {what}")
    assert line.endswith(gain)
    assert paths_advice(there.place(2), every=True) == ()


def test_a_lane_is_said_where_no_message_takes_it_and_links_that_cost_nothing_where_asked_for() -> None:
    switch = "switches: [{bandwidth: 187.5MB/s, gpus: [0, 1], nics: [0, 1]}]"
    (line,) = paths_advice(parse_topology(TREE.format(tree=switch), "x.yaml").place(1))
    assert line.startswith("x has all its GPUs behind PCIe")
    assert line.endswith("no more in slots of 16 lanes")
    placement = load_topology("dgx-a100").place(2)
    assert paths_advice(placement) == ()
    (line,) = paths_advice(placement, every=True)
    assert line.startswith("dgx-a100 has nic0, nic1 behind one PCIe link (pcie0 - cpu0) of 24GB/s, and others")
    assert line.endswith("no more if each had a link of its own")
