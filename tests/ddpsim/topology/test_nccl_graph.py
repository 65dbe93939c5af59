"""Rings and trees of NCCL's graph dumps, and those stated by hand."""

import re
from dataclasses import replace

import pytest

from ddpsim.collectives.channels import find_channels
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.nccl_graph import with_graph_dump
from ddpsim.topology.spec import load_topology, parse_topology

GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" nchannels="2" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX">
    <channel><gpu dev="0"/><gpu dev="2"/><gpu dev="1"/><gpu dev="3"/></channel>
    <channel><gpu dev="0"/><gpu dev="3"/><gpu dev="1"/><gpu dev="2"/></channel>
  </graph>
  <graph id="3" pattern="5" nchannels="4"><channel><gpu dev="0"/></channel></graph>
</graphs>
"""


def test_a_graph_dump_is_taken_instead_of_the_search_and_survives_a_round_trip() -> None:
    topology = with_graph_dump(load_topology("hgx-a100-4"), GRAPHS, "graph.xml")
    channels = find_channels(topology.groups[0].template)
    assert channels.given
    assert [ring.gpus[1] for ring in channels.rings] == ["gpu2", "gpu3"]
    assert parse_topology(dump_topology(topology), "again") == topology


def test_a_graph_dump_with_nics_serves_several_nodes() -> None:
    ends = "<channel><net dev='1'/>" + "".join(f"<gpu dev='{n}'/>" for n in range(4)) + "<net dev='1'/></channel>"
    text = f"<graphs version='1'><graph id='0' pattern='4'>{ends}</graph></graphs>"
    template = with_graph_dump(load_topology("abci-v"), text, "graph.xml").groups[0].template
    channels = find_channels(template, network=True)
    assert channels.given
    assert (channels.rings[0].nic_in, channels.rings[0].nic_out) == ("nic1", "nic1")
    assert not find_channels(template).given


CURRENT_GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="3" speedinter="3" typeintra="NVL" typeinter="PIX">
    <channel>
      <net dev="0x100000000000001"/><gpu dev="0x100000000000001" rank="1"/><gpu dev="0" rank="0"/>
      <gpu dev="0x2" rank="2"/><gpu dev="0x3" rank="3"/><net dev="0x100000000000001"/>
    </channel>
    <channel>
      <net dev="0"/><gpu dev="0x3"/><gpu dev="0"/><gpu dev="0x1"/><gpu dev="0x2"/><net dev="0"/>
    </channel>
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="3" speedintra="5" speedinter="3" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0x1"/><gpu dev="0x2"/><gpu dev="0x3"/><gpu dev="0"/><gpu dev="0x1"/><net dev="0x1"/></channel>
    <channel><net dev="0"/><gpu dev="0x3"/><gpu dev="0"/><gpu dev="0x1"/><gpu dev="0x2"/><net dev="0"/></channel>
    <channel><net dev="0"/><gpu dev="0x3"/><gpu dev="0"/><gpu dev="0x1"/><gpu dev="0x2"/><net dev="0"/></channel>
  </graph>
</graphs>
"""


def test_a_dump_of_todays_nccl_gives_speeds_and_trees_too() -> None:
    topology = with_graph_dump(load_topology("abci-v"), CURRENT_GRAPHS, "graph.xml")
    channels = find_channels(topology.groups[0].template, network=True)
    assert [(ring.nic_in, ring.gpus) for ring in channels.rings] == [
        ("nic1", ("gpu1", "gpu0", "gpu2", "gpu3")),
        ("nic0", ("gpu3", "gpu0", "gpu1", "gpu2")),
    ]
    assert (channels.channel_bandwidth, channels.tree_intra_bandwidth) == (3e9, 5e9)
    assert [(chain.nic_in, chain.gpus) for chain in channels.trees] == [
        ("nic1", ("gpu2", "gpu3", "gpu0", "gpu1")),
        ("nic0", ("gpu3", "gpu0", "gpu1", "gpu2")),
    ]
    assert parse_topology(dump_topology(topology), "again") == topology
    searched = load_topology("abci-v")
    assert len({each.fingerprint() for each in (topology, searched)}) == 2
    rings_only = replace(topology.groups[0].template, trees=(), tree_bandwidth=None, ring_bandwidth=None)
    other = replace(topology, groups=(replace(topology.groups[0], template=rings_only),))
    assert other.fingerprint() != topology.fingerprint()


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("  trees: [[gpu0, gpu1]]", ["node.trees", "`trees` without `rings`"]),
        ("  ring_bandwidth: 3GB/s", ["node.ring_bandwidth", "`rings`"]),
        ("  rings: [[gpu0, gpu1]]\n  tree_bandwidth: 3GB/s", ["node.tree_bandwidth", "`trees`"]),
        ("  rings: [[gpu0, gpu1]]\n  trees: [[gpu0, gpu1], [gpu1, gpu0]]", ["2 trees, 1 rings"]),
        ("  rings: [[gpu0, gpu1]]\n  trees: [[gpu0, gpu7]]", ["node.trees.0", "gpu7"]),
    ],
)
def test_graphs_stated_by_hand_and_wrong(node: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_topology(f"name: x\nnode:\n  gpus: {{count: 2, model: V100}}\n{node}\n", "x.yaml")
    for word in ["x.yaml", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GRAPHS.replace('speedintra="20"', 'speedintra="fast"'), ["line 2", "speedintra='fast'"]),
        (GRAPHS.replace('dev="3"', 'dev="-1"'), ["line 3", "dev='-1'"]),
        (GRAPHS.replace('dev="3"', 'dev="9"'), ["gpu9"]),
        (re.sub(r'<gpu dev="[13]"/>', "", GRAPHS), ["rings pass gpu0, gpu2, 2 of the 4 GPUs that hgx-a100-4 has"]),
        (GRAPHS.replace('pattern="4"', 'pattern="2"'), ["no ring"]),
        (GRAPHS.replace('<gpu dev="2"/>', "<gpu/>"), ["line 3", "dev=None"]),
        (GRAPHS.replace('<gpu dev="2"/>', '<gpu dev="0"/>'), ["no ring"]),
        ('<system version="1"></system>', ["<system>"]),
    ],
)
def test_bad_graph_dumps(text: str, words: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        with_graph_dump(load_topology("hgx-a100-4"), text, "graph.xml")
    for word in ["graph.xml", *words]:
        assert word in str(caught.value)
