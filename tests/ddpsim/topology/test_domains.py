"""NVLink domains: nodes as one for NCCL, ranks where they were, and what is refused."""

import pytest

from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.topology.domains import group_by_domain
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.placement import Placement
from ddpsim.topology.spec import load_topology, parse_topology

NODE = """node:
  gpus: {count: GPUS, model: GB200}
  nvswitch: {links_per_gpu: 18}
"""
NICS = "  nics: [{count: 4, rate: 400Gb/s}]\nfabric: {kind: rail}\n"
MIB = 1 << 20


def rack(domain: str, nodes: int | None = None, *, declared: int = 4, nics: str = NICS, more: str = "") -> Placement:
    text = f"name: rack\nnodes: {declared}\nnvlink_domain: {{{domain}}}\n{more}{NODE.replace('GPUS', '4')}{nics}"
    return parse_topology(text, "rack.yaml").place(nodes)


def times(placement: Placement) -> list[float]:
    transport = make_transport(placement, "nccl")
    return [transport.time_s(Operation.ALLREDUCE, size) for size in (4096, MIB, 256 * MIB)]


def test_a_domain_is_to_nccl_a_node_of_all_its_gpus() -> None:
    one = parse_topology(f"name: one\n{NODE.replace('GPUS', '16')}", "one.yaml").place()
    assert times(rack("nodes: 4")) == pytest.approx(times(one))


def test_a_domain_of_one_node_is_the_node_itself() -> None:
    apart = parse_topology(f"name: rack\nnodes: 4\n{NODE.replace('GPUS', '4')}{NICS}", "apart.yaml").place()
    assert times(rack("nodes: 1")) == times(apart)
    assert times(rack("nodes: 4, mnnvl: false")) == times(apart)
    assert times(rack("nodes: 4"))[2] < times(apart)[2] / 2


def test_releases_before_2_21_know_no_domain() -> None:
    placement = rack("nodes: 4")
    assert [Layout(placement, version).nodes for version in (2020, 2021, CURRENT)] == [4, 1, 1]
    assert Layout(placement, 2021).shape.nvls is not None


def test_a_job_has_the_same_share_of_each_domain() -> None:
    shares = [group_by_domain(rack("nodes: 6", nodes, declared=12)) for nodes in (4, 6, 8, 12, 18)]
    assert [(each.nodes, each.gpus_per_node) for each in shares] == [(1, 16), (1, 24), (2, 16), (2, 24), (3, 24)]
    parted = group_by_domain(rack("nodes: 6, partition: 4", 8, declared=12))
    assert (parted.nodes, parted.gpus_per_node) == (2, 16)


def test_ranks_keep_their_rails_between_domains() -> None:
    placement = rack("nodes: 2", 4)
    fused = group_by_domain(placement)
    rails = [fused.topology.fabric.leaf(1, number) for number in range(8)]
    assert rails == [placement.topology.fabric.leaf(node, number) for node in (2, 3) for number in range(4)]


def test_a_slow_link_of_one_tray_is_the_domains() -> None:
    slow = rack("nodes: 2", 4, more="degraded: [{node: 3, link: gpu1-nvswitch0, bandwidth: 10GB/s}]\n")
    first, second = (each.template for each in group_by_domain(slow).classes)
    bandwidths = {link.name: link.bandwidth for link in second.links}
    assert bandwidths["gpu5>nvswitch0"] == 10e9
    assert {link.bandwidth for link in first.links if link.name.endswith(">nvswitch0")} == {18 * 40.1e9}


def test_rings_between_domains_leave_by_the_nic_of_their_tray() -> None:
    layout = Layout(load_topology("gb200-nvl72").place(36), CURRENT)
    assert (layout.nodes, layout.per_node) == (2, 72)
    for ring in layout.channels_of(0).rings:
        assert ring.nic_kind in ("PIX", "PXN")
        assert int(ring.gpus[-1].removeprefix("gpu")) // 4 == int((ring.nic_out or "").removeprefix("nic")) // 4


def test_a_domain_is_written_as_it_was_read() -> None:
    topology = rack("nodes: 4, partition: 2, mnnvl: false").topology
    again = parse_topology(dump_topology(topology), "again.yaml")  # type: ignore[arg-type]
    assert again.nvlink_domain == topology.nvlink_domain


REFUSED = {
    "at most 128 fit": {"domain": "nodes: 40", "declared": 40},
    "partition of 3 nodes": {"domain": "nodes: 2, partition: 3"},
    "do not spread evenly": {"domain": "nodes: 4", "nodes": 7},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_with_its_reason(what: str) -> None:
    with pytest.raises(InputError, match=what):
        rack(**REFUSED[what])  # type: ignore[arg-type]


def test_many_kinds_of_large_nodes_are_refused() -> None:
    kinds = "".join(f"  k{n}: {{gpus: {{count: 100, model: B200}}}}\n" for n in range(4))
    with pytest.raises(InputError, match="4 kinds of nodes with 40000 pairs"):
        parse_topology(f"name: x\ntemplates:\n{kinds}nodes: {{k0: 1, k1: 1, k2: 1, k3: 1}}\n", "x.yaml")


def test_a_rack_without_nics_is_a_machine_of_one_domain() -> None:
    assert times(rack("nodes: 4", nics=""))[2] == pytest.approx(times(rack("nodes: 4"))[2])
