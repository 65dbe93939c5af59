"""Channels found on a graph: capacities kept, every GPU visited once, as many as an exhaustive search finds."""

from functools import cache
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives.channels import Channels, find_channels
from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.ring_search import Limits, RingSearch
from ddpsim.common import shipped
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Cluster, NodeTemplate, Topology
from ddpsim.topology.link_rates import with_link_rate
from ddpsim.topology.paths import KINDS, find_paths
from ddpsim.topology.spec import load_topology, parse_topology
from tests.ddpsim.topology.templates import node_from, template_named
from tests.profile import examples


def check(channels: Channels, node: NodeTemplate, gpus: tuple[str, ...]) -> None:
    capacity = {link.name: link.bandwidth for link in node.links}
    used = dict.fromkeys(capacity, 0.0)
    for ring in channels.rings:
        assert sorted(ring.gpus) == sorted(gpus)
        stops = list(ring.gpus) if channels.network or len(gpus) == 1 else [*ring.gpus, ring.gpus[0]]
        assert [(route.source, route.target) for route in ring.routes] == list(pairwise(stops))
        for route in ring.routes:
            ends = [route.source, *(link.target for link in route.links)]
            assert ends[-1] == route.target
            assert [link.source for link in route.links] == ends[:-1]
        for link, load in ring.loads().items():
            used[link] += load * ring.bandwidth
        if channels.network:
            assert ring.entry is not None
            assert ring.exit is not None
            assert (ring.entry.source, ring.entry.target) == (ring.nic_in, ring.gpus[0])
            assert (ring.exit.source, ring.exit.target) == (ring.gpus[-1], ring.nic_out)
    for link, load in used.items():
        assert load <= capacity[link] * (1 + 1e-6), link
    assert channels.bus_bandwidth <= channels.sustained_bandwidth * (1 + 1e-6)


CASES = [
    (name, network)
    for name in shipped.names("topology")
    if name != "loopback"
    for network in ([False, True] if template_named(name).nics else [False])
]


@pytest.mark.parametrize(
    ("name", "network"),
    [pytest.param(*case, marks=[pytest.mark.needs("minutes")] * (case == ("dgx-2", True))) for case in CASES],
)
def test_shipped_machines_keep_every_link_within_its_capacity(name: str, network: bool) -> None:
    node = template_named(name)
    for count in range(1 if network else 2, len(node.gpus) + 1):
        gpus = tuple(gpu.name for gpu in node.gpus[:count])
        check(find_channels(node, gpus, network=network), node, gpus)


@pytest.mark.parametrize(
    ("name", "bus"),
    [
        ("dgx-1v", 120e9),  # six NVLinks of 20 GB/s, all used
        ("p3.8xlarge", 80e9),  # four of GPU 0 stay inside the quad
        ("dgx-a100", 240e9),  # twelve NVLinks of 20 GB/s to the switch
        ("dgx-h100", 360e9),  # eighteen of 20.6 GB/s, at NCCL's speeds
        ("2xgp100-nvlink", 72e9),  # four of 18 GB/s
        ("4x1080ti-pcie", 6e9),  # the link between the sockets
    ],
)
def test_bus_bandwidth_inside_a_node(name: str, bus: float) -> None:
    assert find_channels(template_named(name)).bus_bandwidth == pytest.approx(bus)


def test_the_cube_mesh_has_six_hamiltonian_cycles_over_nvlink() -> None:
    channels = find_channels(template_named("dgx-1v"))
    assert len(channels.rings) == 6
    assert channels.kind == "NVL"
    hops = [route.links for ring in channels.rings for route in ring.routes]
    assert all(len(hop) == 1 and hop[0].kind == "nvlink" for hop in hops)


def test_on_a_dual_root_box_the_socket_link_is_the_bottleneck() -> None:
    node = template_named("4x1080ti-pcie")
    channels = find_channels(node)
    loads = channels.loads()
    tightest = min(
        (link for link in node.links if link.name in loads), key=lambda link: link.bandwidth / loads[link.name]
    )
    assert tightest.kind == "socket"
    assert all(route.through_host for ring in channels.rings for route in ring.routes)


def test_between_nodes_a_channel_enters_and_leaves_by_its_own_nic() -> None:
    channels = find_channels(template_named("dgx-1v"), network=True)
    assert [ring.nic_in for ring in channels.rings] == ["nic0", "nic1", "nic2", "nic3"]
    assert all(ring.nic_in == ring.nic_out for ring in channels.rings)
    assert (channels.kind, channels.nic_kind) == ("NVL", "PIX")
    assert channels.bus_bandwidth == pytest.approx(48e9)  # four NICs behind gen3 slots of 12 GB/s


def test_pxn_reaches_the_nic_of_another_gpu_over_nvlink() -> None:
    node = template_named("dgx-h100")
    with_pxn = find_channels(node, network=True, cross_nic=False)
    assert with_pxn.nic_kind == "PXN"
    assert len({ring.nic_in for ring in with_pxn.rings}) == 8
    without = find_channels(node, network=True, pxn=False, cross_nic=False)
    assert KINDS.index(without.nic_kind) > KINDS.index("PXN")
    check(without, node, without.rings[0].gpus)


def test_rings_cross_over_in_pairs_where_that_is_faster() -> None:
    node = template_named("dgx-h100")
    straight, crossing = (find_channels(node, network=True, cross_nic=cross) for cross in (False, True))
    # A GPU's 370.8 GB/s of NVLink carry eight hops of 45 GB/s, a PXN hop among them, or seven of 48.
    assert (straight.bus_bandwidth, crossing.bus_bandwidth) == (360e9, 384e9)
    ends = [(ring.nic_in, ring.nic_out) for ring in crossing.rings]
    assert all(into != out for into, out in ends)
    assert [pair[::-1] for pair in ends[::2]] == ends[1::2]
    check(crossing, node, tuple(gpu.name for gpu in node.gpus))
    # Nothing to gain where each NIC has two GPUs.
    slow = find_channels(template_named("dgx-1v"), network=True)
    assert all(ring.nic_in == ring.nic_out for ring in slow.rings)


def test_without_gpudirect_bytes_to_the_network_rest_in_host_memory() -> None:
    channels = find_channels(template_named("dgx-1v"), network=True, gpudirect=False, pxn=False)
    assert channels.nic_kind in ("PHB", "SYS")
    assert all(ring.entry is not None and ring.entry.through_host for ring in channels.rings)


def test_peer_to_peer_through_an_intel_host_bridge_moves_six_fifths() -> None:
    node = node_from("  gpus: {count: 2, model: V100, peer_to_peer: PHB}\n  pcie: {slots: [{gpus: [0, 1]}]}\n")
    channels = find_channels(node)
    assert channels.sustained_bandwidth == pytest.approx(12e9 / 1.2)
    assert channels.bus_bandwidth == pytest.approx(10e9)
    amd = node_from("  gpus: {count: 2, model: V100}\n  cpu: {vendor: amd, model: rome}\n")
    assert find_channels(amd).bus_bandwidth == pytest.approx(12e9)


def test_a_degraded_nvlink_slows_the_rings_of_its_node_only() -> None:
    text = "name: x\nnode: dgx-a100\ndegraded: [{node: 1, link: gpu3-nvswitch0, bandwidth: 60GB/s}]\n"
    topology: Topology = parse_topology(text, "x.yaml")
    good, bad = (find_channels(each.template) for each in topology.place(3).classes)
    assert good.bus_bandwidth == pytest.approx(240e9)
    assert bad.sustained_bandwidth == pytest.approx(60e9)


@pytest.mark.parametrize(
    ("name", "gpus", "network", "count", "speed"),
    [
        ("dgx-b200", 8, False, 16, 45e9),  # eight rings at 90 GB/s
        ("dgx-b200", 8, True, 8, 48e9),  # under 50 GB/s, and more than four
        ("dgx-h100", 8, False, 12, 30e9),  # six at 60
        ("dgx-h100", 8, True, 8, 48e9),
        ("dgx-h100", 5, True, 5, 48e9),
        ("dgx-h100", 4, True, 8, 24e9),  # four at 48 GB/s: few
        ("gh200-quad", 4, True, 4, 24e9),  # under 25 GB/s
    ],
)
def test_wide_channels_are_split_as_nccl_splits_them(
    name: str, gpus: int, network: bool, count: int, speed: float
) -> None:
    node = template_named(name)
    channels = find_channels(node, [gpu.name for gpu in node.gpus[:gpus]], network=network)
    assert (len(channels.rings), channels.channel_bandwidth) == (count, pytest.approx(speed))


def test_a_nic_writing_to_a_gpu_before_ampere_takes_an_eighth_of_the_way_back() -> None:
    # A gen3 slot of 12 GB/s: 12 out and 12/8 back do not fit, 10 and 10/8 do.
    text = "  gpus: {{count: 1, model: {model}}}\n  pcie: {{bandwidth: 12GB/s, slots: [{{gpus: [0], nics: [0]}}]}}\n"
    text += "  nics: [{{rate: 100Gb/s}}]\n"
    for model, speed in (("V100", 10e9), ("A100", 12e9)):
        node = node_from(text.format(model=model))
        assert find_channels(node, network=True).bus_bandwidth == pytest.approx(speed)


@pytest.mark.parametrize(("pairs", "count"), [("[0, 1, 4], [2, 3, 4]", 2), ("[0, 1, 4]", 1)])
def test_separate_groups_on_nvlink_have_two_rings_through_the_host(pairs: str, count: int) -> None:
    node = node_from(
        f"  gpus: {{count: 4, model: A40}}\n  nvlink: {{pairs: [{pairs}]}}\n"
        "  cpu: {sockets: 2, vendor: intel, model: skylake}\n"
    )
    channels = find_channels(node)
    assert (len(channels.rings), channels.bus_bandwidth) == (count, pytest.approx(10e9))


def test_stated_rings_are_taken() -> None:
    node = node_from(
        "  gpus: {count: 4, model: V100}\n  nvswitch: {links_per_gpu: 6}\n"
        "  rings: [[gpu0, gpu2, gpu1, gpu3], [gpu0, gpu3, gpu1, gpu2]]\n"
    )
    channels = find_channels(node)
    assert channels.given
    assert [ring.gpus for ring in channels.rings] == [tuple(ring) for ring in node.rings]
    assert channels.bus_bandwidth == pytest.approx(120e9)
    assert not find_channels(node, ("gpu0", "gpu1")).given


def test_the_first_gpu_of_the_order_asked_for_starts_the_ring() -> None:
    order = ("gpu5", "gpu1", "gpu4", "gpu0")
    channels = find_channels(template_named("dgx-1v"), order)
    assert {ring.gpus[0] for ring in channels.rings} == {"gpu5"}
    assert channels.bus_bandwidth == pytest.approx(40e9)  # a square with two single sides


def test_gpus_that_take_no_part_carry_nothing() -> None:
    # GPUs 0 and 5 of a cube mesh share no NVLink; 1 and 4 could pass their bytes on, but NCCL does not see them.
    node = template_named("dgx-1v")
    channels = find_channels(node, ("gpu0", "gpu5"))
    assert channels.kind == "SYS"
    assert channels.bus_bandwidth == pytest.approx(6e9)
    # gpu1 sits beside nic0 as gpu0 does: a far GPU alone cannot reach nic0 through either.
    alone = find_channels(node, ("gpu2",), network=True)
    assert {ring.nic_in for ring in alone.rings} == {"nic1"}
    assert alone.nic_kind == "PIX"
    for count in range(1, 8):
        chosen = tuple(gpu.name for gpu in node.gpus[:count])
        for ring in find_channels(node, chosen, network=True).rings:
            passed = {end for link in ring.loads() for end in link.split(">") if end.startswith("gpu")}
            assert passed <= set(chosen)


def test_two_of_many_gpus_on_amd_are_two() -> None:
    node = node_from("  gpus: {count: 4, model: A100}\n  cpu: {sockets: 2, vendor: amd, model: rome}\n")
    assert not any(route.through_host for ring in find_channels(node, ("gpu0", "gpu3")).rings for route in ring.routes)
    assert any(route.through_host for ring in find_channels(node).rings for route in ring.routes)


def test_networks_slower_than_any_speed_of_the_list_still_have_a_ring() -> None:
    node = node_from("  gpus: {count: 2, model: V100}\n  nics: [{rate: 100Mb/s}]\n")
    channels = find_channels(node, network=True)
    assert channels.bus_bandwidth == pytest.approx(12.5e6)


@pytest.mark.parametrize("gpus", [("gpu0", "gpu8"), ("gpu0", "gpu0"), ()])
def test_gpus_that_are_not_there(gpus: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        find_channels(template_named("dgx-1v"), gpus)


def test_a_tree_may_be_faster_inside_than_at_the_nic() -> None:
    channels = find_channels(template_named("dgx-1v"), network=True)
    assert channels.channel_bandwidth < channels.tree_intra_bandwidth <= 2 * channels.channel_bandwidth
    assert all(len(tree.routes) == 7 and tree.nic_in == tree.nic_out for tree in channels.trees)


def rack(gpus: int, links: str) -> NodeTemplate:
    """Return a node of as many NICs as GPUs, a PCIe switch for each pair of one."""
    switches = "".join(f"      - {{gpus: [{n}], nics: [{n}]}}\n" for n in range(gpus))
    return node_from(
        f"  gpus: {{count: {gpus}, model: B200}}\n{links}  nics: [{{count: {gpus}, rate: 400Gb/s}}]\n"
        f"  pcie:\n    generation: 5\n    switches:\n{switches}"
    )


def test_a_rack_of_one_switch_has_rings_that_fill_its_nvlinks() -> None:
    node = rack(72, "  nvswitch: {links_per_gpu: 18}\n")
    gpus = tuple(gpu.name for gpu in node.gpus)
    for network in (False, True):
        channels = find_channels(node, network=network)
        check(channels, node, gpus)
        # 18 links of 40.1 GB/s leave a GPU; NCCL's list of speeds has 45 and 45.1 GB/s.
        assert channels.bus_bandwidth > 0.99 * 18 * 40.1e9


def test_the_work_of_a_search_is_bounded_on_any_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    take = RingSearch.take

    def counted(self: RingSearch, hop: Any, speed: float) -> bool:
        nonlocal tried
        tried += 1
        return take(self, hop, speed)

    monkeypatch.setattr(RingSearch, "take", counted)
    node = rack(40, "")
    check(find_channels(node, network=True), node, tuple(gpu.name for gpu in node.gpus))
    assert tried < 1_500_000


LINKS = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@settings(max_examples=examples(40), deadline=None)
@given(LINKS)
def test_as_many_rings_over_four_gpus_as_an_exhaustive_search_finds(counts: list[int]) -> None:
    pairs = [(a, b) for a in range(4) for b in range(a)]
    text = ", ".join(f"[{a}, {b}, {n}]" for (a, b), n in zip(pairs, counts, strict=True) if n)
    nvlink = f"  nvlink: {{pairs: [{text}]}}\n" if text else ""
    node = node_from(f"  gpus: {{count: 4, model: V100}}\n{nvlink}")
    gpus = tuple(gpu.name for gpu in node.gpus)
    search = RingSearch(find_paths(node), {link.name: link.bandwidth for link in node.links}, gpus, budget=20_000)
    found = search.pack(20e9, 16, Limits(KINDS.index("NVL")))
    links = dict(zip(pairs, counts, strict=True))
    assert len(found) == most_rings(tuple(links.get((a, b), links.get((b, a), 0)) for a in range(4) for b in range(4)))
    check(find_channels(node), node, gpus)


@cache
def most_rings(capacity: tuple[int, ...]) -> int:
    """The exact answer: try every ring that still fits, in order, then the rest."""
    best = 0
    for order in permutations((1, 2, 3)):
        hops = list(zip((0, *order), (*order, 0), strict=True))
        if all(capacity[4 * a + b] for a, b in hops):
            left = list(capacity)
            for a, b in hops:
                left[4 * a + b] -= 1
            best = max(best, 1 + most_rings(tuple(left)))
    return best


def two_p3(rate: float) -> Cluster:
    """Return p3.8xlarge, one card a node, at another rate."""
    return with_link_rate(load_topology("p3.8xlarge"), "nic", rate)


@pytest.mark.parametrize(("rate", "inside"), [(1.25e9, 2.4e9), (2.5e9, 5e9), (3.125e9, 6e9)])
def test_trees_are_raised_by_a_step_of_the_table_while_they_are_below_twice_the_nic(rate: float, inside: float) -> None:
    """Of its table 1.2, 2.4, 3, 4, 5, 6, 7: twice 1.2 is met by 2.4, twice 2.4 is passed by 5, twice 3 is met by 6."""
    channels = find_channels(two_p3(rate).groups[0].template, network=True)
    assert channels.tree_intra_bandwidth == pytest.approx(inside)


@pytest.mark.parametrize("size_bytes", [1 << 20, 25 << 20, 64 << 20])
def test_two_nodes_with_faster_cards_are_not_slower(size_bytes: int) -> None:
    """Up to what sockets carry: a port of 12.5 GB/s makes NCCL believe in rings, which they hold to the same 5 GB/s."""
    times_s = [
        make_transport(two_p3(rate).place(2, 4), "nccl").time_s(Operation.ALLREDUCE, size_bytes)
        for rate in (0.625e9, 1.25e9, 1.5e9, 1.875e9, 2.5e9, 3.125e9, 3.75e9, 5e9, 6.25e9)
    ]
    assert all(after <= before * 1.01 for before, after in pairwise(times_s)), times_s
