"""Topology files: what they say, what they become, what is wrong with them."""

from pathlib import Path

import pytest

from ddpsim.common import shipped
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.spec import load_topology, parse_topology

MACHINES = shipped.names("topology")


@pytest.mark.parametrize("name", MACHINES)
def test_shipped_machines_load_are_sourced_and_survive_a_round_trip(name: str) -> None:
    topology = load_topology(name)
    assert topology.name == name
    assert topology.sources
    assert topology.confidence
    assert parse_topology(dump_topology(topology), "again") == topology


@pytest.mark.parametrize("name", MACHINES)
def test_every_gpu_of_a_machine_has_as_much_bandwidth_out_as_in(name: str) -> None:
    template = load_topology(name).groups[0].template
    for gpu in template.gpus:
        out = sum(link.bandwidth for link in template.links if link.source == gpu.name)
        back = sum(link.bandwidth for link in template.links if link.target == gpu.name)
        assert out == back > 0


HOSTS = """
name: lab
nodes: 4
node:
  processes: {count: 2, rate: 1.5GB/s, total: 3GB/s}
  nics: [{rate: 1gbit, kind: ethernet, delay: 0.2ms}]
fabric: {kind: two-level, nodes_per_leaf: 2, trunk: 500Mb/s, trunk_delay: 1ms}
degraded:
  - {node: 2, link: nic0-network, bandwidth: 200Mb/s}
"""


def test_a_network_of_plain_hosts_with_a_trunk_and_a_slow_link() -> None:
    topology = parse_topology(HOSTS, "lab.yaml")
    placement = topology.place()
    assert placement.world_size == 8
    assert topology.compute_device == "cpu"
    route = placement.network_route((0, "nic0"), (2, "nic0"))
    assert [link.name for link in route] == ["node0/nic0>leaf0", "leaf0>spine0", "spine0>leaf1", "leaf1>node2/nic0"]
    assert [link.bandwidth for link in route] == [125e6, 62.5e6, 62.5e6, 25e6]
    assert sum(link.latency_s for link in route) == pytest.approx(2.4e-3)
    assert [tuple(each.node_indices) for each in placement.classes] == [(0, 1, 3), (2,)]
    assert parse_topology(dump_topology(topology), "again") == topology


def test_several_templates_inherit_machines_and_are_numbered_in_order() -> None:
    topology = parse_topology(
        "name: mix\nnodes: {fast: 2, slow: 1}\n"
        "templates: {fast: dgx-a100, slow: {machine: dgx-1v, workload: resnet50}}\nfabric: {kind: flat}\n",
        "mix.yaml",
    )
    placement = topology.place()
    assert [(each.template.name, tuple(each.node_indices)) for each in placement.classes] == [
        ("fast", (0, 1)),
        ("slow", (2,)),
    ]
    assert placement.classes[1].template.workload == "resnet50"
    assert placement.node_of(17)[:2] == (2, 1)
    with pytest.raises(TopologyError, match="4 nodes asked for, mix has 3"):
        topology.place(4)


def test_a_large_cluster_is_one_class() -> None:
    placement = load_topology("dgx-a100").place(2048)
    assert placement.world_size == 16384
    assert len(placement.classes) == 1


def test_the_expanded_graph_joins_nodes_by_rail() -> None:
    graph = load_topology("dgx-a100").graph(2)
    assert graph.has_edge("node0/nic3", "rail3")
    assert graph.has_edge("rail3", "node1/nic3")
    assert graph["node0/gpu0"]["node0/nvswitch0"]["link"].bandwidth == 240e9


def test_fingerprint_sees_hardware_not_names() -> None:
    text = "name: {name}\nnode:\n  gpus: {{count: 2, model: {gpu}}}\n"
    same = parse_topology(text.format(name="a", gpu="V100"), "a").fingerprint()
    assert same == parse_topology(text.format(name="b", gpu="V100"), "b").fingerprint()
    assert same != parse_topology(text.format(name="a", gpu="A100"), "a").fingerprint()


def test_a_file_may_say_how_many_ranks_a_node_has() -> None:
    text = "name: x\ngpus_per_node: 2\nnode:\n  gpus: {count: 4, model: V100}\n"
    topology = parse_topology(text, "x.yaml")
    assert topology.place().world_size == 2
    assert topology.place(gpus_per_node=4).world_size == 4
    assert parse_topology(dump_topology(topology), "again") == topology


NODE = "name: x\nnode:\n  gpus: {count: 2, model: V100}\n"
BAD = {
    "bare number": (NODE + "  nvlink: {pairs: [[0, 1, 1]], bandwidth: 20}\n", ["20", "unit", "line 4", "50GB/s"]),
    "zero bandwidth": (NODE + "  nvlink: {pairs: [[0, 1, 1]], bandwidth: 0GB/s}\n", ["0GB/s", "above zero"]),
    "negative bandwidth": (NODE + "  pcie: {bandwidth: -3GB/s}\n", ["-3GB/s", "node.pcie.bandwidth"]),
    "two errors at once": (
        NODE + "  nics: [{rate: 5}]\n  cpu: {sockets: 0}\n",
        ["node.nics.0.rate", "line 4", "node.cpu.sockets", "line 5"],
    ),
    "unknown key": (NODE + "  nvlinks: {pairs: [[0, 1, 1]]}\n", ["'nvlinks'", "did you mean nvlink"]),
    "unknown GPU": ("name: x\nnode:\n  gpus: {count: 2, model: V1000}\n", ["V1000", "V100"]),
    "not YAML": ("name: [x\nnode: 3\n", ["malformed YAML", "line 2"]),
    "key twice": ("name: x\nname: y\n", ["'name' stands twice", "line"]),
    "not a mapping": ("- 3\n", ["mapping"]),
    "empty": ("", ["mapping"]),
    "no node": ("name: x\n", ["node"]),
    "GPU left out": (NODE + "  pcie: {slots: [{gpus: [0]}]}\n", ["gpu0 cannot reach gpu1"]),
    "GPU twice": (NODE + "  pcie: {slots: [{gpus: [0, 0]}]}\n", ["gpu0 stands in two places"]),
    "GPU beyond": (NODE + "  pcie: {slots: [{gpus: [0, 2]}]}\n", ["gpu2 is not on this node"]),
    "NVLink to itself": (NODE + "  nvlink: {pairs: [[1, 1, 1]]}\n", ["[1, 1, 1]", "pairs.0"]),
    "socket beyond": (NODE + "  pcie: {slots: [{socket: 1, gpus: [0, 1]}]}\n", ["socket 1 of 1"]),
    "no list of NICs": (
        NODE + "  nics: [{rate: 10gbit}]\n  pcie: {switches: [{gpus: [0, 1], nics: [[]]}]}\n",
        ["nics", "a list of NIC numbers was expected"],
    ),
    "unknown link": (NODE + "degraded: [{link: gpu0-gpu9, bandwidth: 1GB/s}]\n", ["gpu0-gpu9"]),
    "unknown fabric": (NODE + "fabric: {kind: ring}\n", ["fabric.kind", "'ring'"]),
    "nothing degraded": (NODE + "degraded: [{link: gpu0-cpu0}]\n", ["not changed"]),
    "ranks beyond": ("name: x\ngpus_per_node: 3\nnode:\n  gpus: {count: 2, model: V100}\n", ["3 ranks", "2 GPUs"]),
    "unknown machine": ("name: x\nnode: dgx-1\n", ["dgx-1", "dgx-1v"]),
    "sexagesimal": ("name: x\nnode:\n  gpus: {count: 12:30, model: V100}\n", ["node.gpus.count", "'12:30'"]),
    "octal": ("name: x\nnode:\n  gpus: {count: 010, model: V100}\n", ["node.gpus.count", "'010'"]),
    "too deep": ("name: " + "[" * 5000, ["nested too deep"]),
    "switches too deep": (
        NODE + "  pcie: {switches: [" + "{switches: [" * 300 + "]}" * 300 + "]}\n",
        ["nested too deep"],
    ),
    "text as number": ("name: x\nnode:\n  gpus: {count: '2', model: V100}\n", ["node.gpus.count", "'2'"]),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_bad_files_are_told_with_file_place_and_value(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_topology(text, "bad.yaml")
    message = str(caught.value)
    assert "bad.yaml" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "words"),
    [
        ("dgx-1v", 1, 9, ["9 ranks", "8 GPUs"]),
        ("dgx-1v", 0, None, ["0 nodes"]),
        ("dgx-1v", 1, 0, ["0 GPUs"]),
        ("2xgp100-nvlink", 2, None, ["no network"]),
    ],
)
def test_placements_that_do_not_fit(machine: str, nodes: int, gpus: int | None, words: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(machine).place(nodes, gpus)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="not text: invalid start byte at byte 0; give a machine's YAML"):
        load_topology(str(tmp_path / "x.yaml"))


SEEN = "name: x\nnode: dgx-1v\nvisible_devices: [{}]\n"


def test_ranks_run_on_the_visible_devices_in_their_order() -> None:
    topology = parse_topology(SEEN.format("4, 0, 3"), "x.yaml")
    placement = topology.place()
    assert placement.gpus(placement.classes[0]) == ("gpu4", "gpu0", "gpu3")
    two = topology.place(2, 2)
    assert two.gpus(two.classes[0]) == ("gpu4", "gpu0")
    assert parse_topology(dump_topology(topology), "again") == topology
    prints = {parse_topology(SEEN.format(text), "x.yaml").fingerprint() for text in ("4, 0, 3", "0, 3, 4", "0, 3")}
    assert len(prints) == 3
    with pytest.raises(TopologyError, match="4 ranks a node asked for, x has 3 visible GPUs"):
        topology.place(1, 4)


@pytest.mark.parametrize(
    ("numbers", "more", "words"),
    [
        ("0, 8", "", "visible_devices: GPU 8 is visible, a node has 8 GPUs"),
        ("0, 1, 0", "", "visible_devices: visible GPUs 0, 1, 0; name each GPU once"),
        ("0, 1", "gpus_per_node: 3\n", "gpus_per_node: 3 ranks a node, a node has 2 visible GPUs"),
        ("-1", "", "visible_devices.0"),
    ],
)
def test_visible_devices_that_cannot_be(numbers: str, more: str, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(SEEN.format(numbers) + more, "x.yaml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nnodes: &a [*a]\nnode: dgx-1v\n", ["x.yaml", "nested too deep"]),
        (
            "a: &a [0,0,0,0,0,0,0,0,0,0]\n"
            + "".join(
                f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
            ),
            ["x.yaml", "more than 100,000 values"],
        ),
        (f"name: x\nnodes: 1{'0' * 400}\nnode: dgx-1v\n", ["x.yaml: nodes", "401 digits"]),
        (f"name: x\nnode: {'x' * 300}\n", ["x.yaml: node: unknown topology"]),
        (f"name: x\n{'y' * 900}: 1\nnode: dgx-1v\n", ["x.yaml", "characters)", "visible_devices"]),
    ],
)
def test_files_that_lead_astray_are_refused_in_a_short_message(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_topology(text, "x.yaml")
    assert len(str(caught.value)) <= 1000
    for word in words:
        assert word in str(caught.value)
