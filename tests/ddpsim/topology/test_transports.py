"""Transports of pairs: as NCCL's logs and published access matrices name them."""

from collections import Counter
from itertools import combinations

import pytest

from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.common.units import GIB
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.graph import NodeTemplate
from ddpsim.topology.paths import find_paths
from ddpsim.topology.spec import parse_topology
from ddpsim.topology.transports import HOST, NETWORK, NVLINK, PCIE, groups_document, pair_transports
from tests.ddpsim.topology.templates import template_named

PAIR = (
    "name: x\nnode:\n  gpus: {{count: 2, model: {}}}\n  pcie: {{switches: [{{gpus: [0, 1], nics: [0]}}]}}\n"
    "  nics: [{{rate: 100Gb/s, kind: {}}}]\n"
)

SLOTS = (
    "name: x\nnode:\n  gpus: {{count: 2, model: A100}}\n  nvlink: {{pairs: [[0, 1, 4]]}}\n"
    "  pcie: {{generation: 4, slots: [{{gpus: [0, 1], nics: [0]}}]}}\n"
    "  nics: [{{rate: 200Gb/s, kind: slingshot{}}}]\nfabric: {{kind: flat}}\n"
)
STAGED = "NET/OFI through host memory"


def of(template: NodeTemplate, *, network: bool = True) -> dict[tuple[str, str], tuple[str, str]]:
    gpus = [gpu.name for gpu in template.gpus]
    found = pair_transports(template, gpus, network)
    assert len(found) == len(gpus) * (len(gpus) - 1) // 2 + network * len(gpus)
    return {(pair.first, pair.second): (pair.name, pair.why) for pair in found}


@pytest.mark.parametrize(
    ("machine", "inside"),
    [
        ("dgx-1v", {NVLINK: 28}),  # nccl#318's log: every pair `via P2P`, those without a link through another GPU
        ("dgx-h100", {NVLINK: 28}),
        ("4xrtx4090", {HOST: 6}),  # nccl-tests#307's log: `via SHM/direct`
        ("8xl40s-pcie", {PCIE: 4, HOST: 24}),  # `nvidia-smi topo -m`: PIX in four pairs, NODE and SYS elsewhere
        ("ncv4-4", {NVLINK: 2, HOST: 4}),  # two bridged pairs: Azure's `nvidia-smi topo -m`
        ("g4dn.12xlarge", {HOST: 6}),  # ray#15495's `nvidia-smi topo -m`: PHB between all
        ("g5.48xlarge", {HOST: 28}),  # TensorRT-LLM#1034: no peer access
        ("g6.48xlarge", {HOST: 28}),  # llm-d-infra#181: no peer access
    ],
)
def test_transports_inside_shipped_machines(machine: str, inside: dict[str, int]) -> None:
    assert Counter(name for name, _ in of(template_named(machine), network=False).values()) == inside


@pytest.mark.parametrize(
    ("gpu", "kind", "inside", "outwards", "why"),
    [
        ("A100", "infiniband", PCIE, "NET/IB with GPUDirect", ""),
        ("A100", "efa", PCIE, "NET/OFI with GPUDirect", ""),
        ("A100", "ethernet", PCIE, "NET/Socket through host memory", "`ethernet` has no GPUDirect"),
        ("RTX5090", "roce", HOST, "NET/IB through host memory", "RTX5090's driver has no GPUDirect"),
        ("A100", "roce, gpudirect: false", PCIE, "NET/IB through host memory", "gpudirect: false in its file"),
    ],
)
def test_the_way_out_follows_card_and_gpu(gpu: str, kind: str, inside: str, outwards: str, why: str) -> None:
    found = of(parse_topology(PAIR.format(gpu, kind), "x.yaml").groups[0].template)
    assert found["gpu0", "gpu1"][0] == inside
    assert found["gpu0", NETWORK] == (outwards, why)


def test_what_rules_a_nearer_way_out_is_said() -> None:
    forced = parse_topology(PAIR.format("A100, peer_to_peer: LOC", "roce"), "x.yaml").groups[0].template
    assert of(forced)["gpu0", "gpu1"] == (HOST, "peer_to_peer: LOC in its file")
    assert "NVIDIA/nccl#1086" in of(template_named("4xrtx4090"), network=False)["gpu0", "gpu1"][1]
    assert "NCCL_P2P_LEVEL=PXB" in of(template_named("8xl40s-pcie"))["gpu0", "gpu2"][1]
    assert "NCCL_NET_GDR_LEVEL=PXB" in of(template_named("2x4a100-1nic"))["gpu3", NETWORK][1]


@pytest.mark.parametrize(
    ("nics", "outwards"),
    [
        ("", (STAGED, "NCCL goes past one root port through host memory (NCCL_NET_GDR_LEVEL=PXB)")),
        (", gdr_level: PXB", (STAGED, "NCCL goes past one root port through host memory (NCCL_NET_GDR_LEVEL=PXB)")),
        (", gdr_level: PHB", ("NET/OFI with GPUDirect", "")),
        (", gdr_level: PHB, gpudirect: false", (STAGED, "gpudirect: false in its file")),
        (", gdr_level: PIX", (STAGED, "gdr_level: PIX in its file")),
    ],
)
def test_gpudirect_goes_as_far_as_its_level(nics: str, outwards: tuple[str, str]) -> None:
    machine = parse_topology(SLOTS.format(nics), "x.yaml")
    assert of(machine.groups[0].template)["gpu0", NETWORK] == outwards
    again = parse_topology(dump_topology(machine), "x.yaml")
    assert again.fingerprint() == machine.fingerprint()
    assert again.groups[0].template.nics == machine.groups[0].template.nics
    unstated = "gdr_level" not in nics or "PXB" in nics
    assert (machine.fingerprint() == parse_topology(SLOTS.format(""), "x.yaml").fingerprint()) is unstated


def test_a_message_by_gpudirect_through_the_root_takes_less_than_through_host_memory() -> None:
    staged, direct = (parse_topology(SLOTS.format(more), "x.yaml").place(2) for more in ("", ", gdr_level: PHB"))
    times = [NcclTransport(Layout(each, CURRENT)).allreduce_s(GIB) for each in (staged, direct)]
    assert times[1] < 0.9 * times[0]


@pytest.mark.parametrize("machine", ["dgx-1v", "8xl40s-pcie", "2x4a100-1nic", "gh200-quad"])
def test_a_pair_says_what_its_route_is(machine: str) -> None:
    template = template_named(machine)
    paths = find_paths(template)
    for pair in pair_transports(template, [gpu.name for gpu in template.gpus], False):
        route = paths[pair.first, pair.second]
        assert (pair.kind, pair.bandwidth) == (route.kind, route.bandwidth)
        assert (pair.name == HOST) == route.through_host


def test_groups_hold_every_pair_once() -> None:
    template = template_named("dgx-1v")
    gpus = [gpu.name for gpu in template.gpus]
    groups = groups_document(pair_transports(template, gpus, False))
    assert sorted(tuple(pair) for group in groups for pair in group["pairs"]) == sorted(combinations(gpus, 2))
    assert len({(group["transport"], group["route_kind"], group["bandwidth_Bps"]) for group in groups}) == len(groups)


def test_a_card_that_no_link_joins_to_a_nic_has_no_way_out() -> None:
    text = PAIR.format("A100", "roce").replace("gpus: [0, 1], nics", "gpus: [], nics")
    nvlinks = "  nvlink: {bandwidth: 25GB/s, pairs: [[0, 1, 1]]}\n"
    template = parse_topology(text + nvlinks, "x.yaml").groups[0].template
    assert [pair.name for pair in pair_transports(template, ["gpu0", "gpu1"], network=True)] == [NVLINK]
