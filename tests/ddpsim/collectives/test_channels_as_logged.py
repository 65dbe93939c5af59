"""Channels against what NCCL itself logged or dumped on machines described in public threads.

Each case is a machine as its thread describes it, and the number of channels, the speed in GB/s and the kinds of paths
that NCCL printed (`Pattern 4, nChannels N, bw S/S, type INTRA/INTER`), or dumped, there. One differs: in nccl#601 it
printed SYS/SYS, its rings entering by one socket and leaving by the other; ours leave by the socket they entered.
"""

import pytest

from ddpsim.collectives.channels import Channels, find_channels
from ddpsim.collectives.nccl.layout import find_switch_graph
from ddpsim.topology.graph import NodeTemplate
from tests.ddpsim.topology.templates import node_from, template_named

FOUR_V100 = "  gpus: {count: 4, model: V100}\n  nvlink: {pairs: [[0,1,2],[0,2,2],[0,3,2],[1,2,2],[1,3,2],[2,3,2]]}\n"
EIGHT_4090 = """  gpus: {count: 8, model: RTX4090}
  pcie: {generation: 4, switches: [{socket: 0, gpus: [0, 1, 2, 3]}, {socket: 1, gpus: [4, 5, 6, 7]}]}
  cpu: {sockets: 2, vendor: intel, model: skylake}
"""
APART = """  gpus: {count: 2, model: RTX4090}
  pcie: {generation: 4, slots: [{socket: 0, gpus: [0]}, {socket: 2, gpus: [1]}]}
  cpu: {sockets: 3, vendor: intel, model: skylake}
"""
FOUR_ETHERNET = """  gpus: {count: 4, model: P40}
  pcie: {generation: 3, slots: [{socket: 0, gpus: [0, 1], nics: [[0, 1]]}, {socket: 1, gpus: [2, 3], nics: [[2, 3]]}]}
  cpu: {sockets: 2, vendor: intel, model: broadwell}
  nics: [{count: 4, rate: 10Gb/s, kind: ethernet}]
"""
ONE_A100 = """  gpus: {count: 1, model: A100}
  pcie: {generation: 4, slots: [{gpus: [0], nics: [0]}]}
  cpu: {vendor: amd, model: rome}
  nics: [{rate: 200Gb/s}]
"""
CASES = {
    "nccl#713: 4 V100, two links a pair": (node_from(FOUR_V100), None, False, 6, 20, "NVL/LOC"),
    "nccl#507: 8 GPUs of a DGX-2": (template_named("dgx-2"), 8, False, 6, 20, "NVL/LOC"),
    "nccl-tests#100: 8 A100 on NVSwitch": (template_named("dgx-a100"), None, False, 12, 20, "NVL/LOC"),
    "2 of 8 A100 on NVSwitch": (template_named("dgx-a100"), 2, False, 12, 20, "NVL/LOC"),
    "nccl#1197: 8 H100 on NVSwitch": (template_named("dgx-h100"), None, False, 12, 30, "NVL/LOC"),
    "nccl-tests#307: 8 RTX 4090, two root complexes": (node_from(EIGHT_4090), None, False, 1, 5, "SYS/LOC"),
    "nccl#1358: two cards on two sockets": (node_from(APART), None, False, 1, 10, "SYS/LOC"),
    "nccl#601: 4 cards, 4 Ethernet ports": (node_from(FOUR_ETHERNET), None, True, 4, 1.2, "SYS/PHB"),
    "16 H100, a 400 Gb/s RoCE port each, crossNic 2": (template_named("p5.48xlarge"), None, True, 8, 48, "NVL/PIX"),
    "a card and a 200 Gb/s port on one socket": (node_from(ONE_A100), None, True, 1, 24, "LOC/PHB"),
}


def found(template: NodeTemplate, gpus: int | None, network: bool) -> Channels:
    return find_channels(template, [gpu.name for gpu in template.gpus[:gpus]], network=network)


@pytest.mark.parametrize(("template", "gpus", "network", "count", "speed", "kinds"), CASES.values(), ids=CASES)
def test_channels_as_nccl_logged_them(
    template: NodeTemplate, gpus: int | None, network: bool, count: int, speed: float, kinds: str
) -> None:
    channels = found(template, gpus, network)
    assert (len(channels.rings), channels.channel_bandwidth) == (count, pytest.approx(speed * 1e9))
    assert f"{channels.kind}/{channels.nic_kind}" == kinds


def test_a_tree_channel_may_have_twice_the_speed_of_its_nic() -> None:
    channels = found(node_from(ONE_A100), None, True)
    assert channels.tree_intra_bandwidth == pytest.approx(48e9)  # logged as bw 48.0/24.0 for pattern 3


def test_heads_of_in_switch_reduction_as_nccl_logged_them() -> None:
    template = template_named("dgx-h100")
    found = find_switch_graph(template, [gpu.name for gpu in template.gpus], network=False)
    assert found is not None
    assert (len(found.heads), found.inside, found.across) == (8, 40e9, 60e9)  # nccl#1197, pattern 5
