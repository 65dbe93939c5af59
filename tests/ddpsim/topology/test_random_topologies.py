"""Any node that can be written: routes and channels hold, YAML survives; any broken file is refused in words."""

from itertools import permutations
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives.channels import find_channels
from ddpsim.common.errors import InputError
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.graph import Topology
from ddpsim.topology.paths import find_paths
from ddpsim.topology.spec import parse_topology
from tests.ddpsim.collectives.test_channels import check
from tests.ddpsim.topology.strategies import broken, nodes
from tests.profile import examples


def topology_of(node: dict[str, Any]) -> Topology:
    return parse_topology(yaml.safe_dump({"name": "any", "node": node}), "any.yaml")


@settings(max_examples=examples(40), deadline=None)
@given(nodes())
def test_yaml_survives_a_round_trip(node: dict[str, Any]) -> None:
    topology = topology_of(node)
    assert parse_topology(dump_topology(topology), "again") == topology


@settings(max_examples=examples(40), deadline=None)
@given(nodes())
def test_every_route_is_a_chain_of_links_from_end_to_end(node: dict[str, Any]) -> None:
    template = topology_of(node).groups[0].template
    paths = find_paths(template)
    gpus, nics = [gpu.name for gpu in template.gpus], [nic.name for nic in template.nics]
    pairs = [*permutations(gpus, 2), *((g, n) for g in gpus for n in nics), *((n, g) for g in gpus for n in nics)]
    for source, target in pairs:
        route = paths[source, target]
        stops = [source, *(link.target for link in route.links)]
        assert stops[-1] == target
        assert [link.source for link in route.links] == stops[:-1]
        assert set(route.links) <= set(template.links)
        assert not {"nic", "network"} & {link.kind for link in route.links}


@settings(max_examples=examples(40), deadline=None)
@given(nodes())
def test_channels_visit_each_gpu_once_and_keep_links_within_capacity(node: dict[str, Any]) -> None:
    template = topology_of(node).groups[0].template
    gpus = tuple(gpu.name for gpu in template.gpus)
    for network in (False, True) if template.nics else (False,):
        channels = find_channels(template, network=network)
        check(channels, template, gpus)
        assert channels.tree_intra_bandwidth >= channels.channel_bandwidth


GOOD = {
    "name": "lab",
    "nodes": {"a": 2, "b": 1},
    "templates": {
        "a": {
            "gpus": {"count": 2, "model": "V100", "peer_to_peer": "PXB"},
            "nvlink": {"pairs": [[0, 1, 2]], "bandwidth": "20GB/s"},
            "pcie": {"generation": 3, "switches": [{"socket": 0, "gpus": [0, 1], "nics": [[0, 1]]}]},
            "cpu": {"sockets": 1, "vendor": "intel", "model": "skylake"},
            "nics": [{"count": 2, "rate": "25Gb/s", "delay": "1us"}],
            "rings": [["gpu0", "gpu1"]],
            "extras": {"a": "b"},
        },
        "b": {"machine": "p3.8xlarge", "workload": "resnet50"},
    },
    "fabric": {"kind": "two-level", "nodes_per_leaf": 2, "oversubscription": 2.0},
    "degraded": [{"link": "nic0-network", "node": 0, "bandwidth": "1Gb/s"}],
}


def test_the_file_to_be_broken_is_good() -> None:
    topology = parse_topology(yaml.safe_dump(GOOD), "good.yaml")
    assert topology.place().world_size == 6


@settings(max_examples=examples(150), deadline=None)
@given(broken(GOOD))
def test_a_broken_file_is_refused_in_words_or_means_something_else(document: dict[str, Any]) -> None:
    try:
        topology = parse_topology(yaml.safe_dump(document), "broken.yaml")
    except InputError as error:
        message = str(error)
    else:
        message = f"broken.yaml: {topology.name}"
        assert parse_topology(dump_topology(topology), "again").fingerprint() == topology.fingerprint()
    assert "broken.yaml" in message


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(InputError, match=r"any\.txt"):
        parse_topology(text, "any.txt")
