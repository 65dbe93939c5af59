"""Heads of in-switch reductions and their speeds."""

import pytest

from ddpsim.collectives.nccl.layout import find_switch_graph
from ddpsim.topology.spec import parse_topology
from tests.ddpsim.topology.templates import template_named


@pytest.mark.parametrize(
    ("name", "gpus", "network", "heads", "inside", "across"),
    [
        # A head's link carries its part twice, the others once: 370.8 GB/s over nine.
        ("dgx-h100", 8, False, 8, 40e9, 60e9),
        ("dgx-b200", 8, False, 8, 80e9, 90e9),
        ("dgx-h100", 4, False, 4, 60e9, 60e9),
        # Between nodes up to the slot's 48 GB/s.
        ("dgx-h100", 8, True, 8, 40e9, 48e9),
        ("dgx-h100", 4, True, 4, 48e9, 48e9),
        ("p5.48xlarge", 8, True, 8, 40e9, 48e9),
    ],
)
def test_every_gpu_or_every_nics_nearest_is_a_head(
    name: str, gpus: int, network: bool, heads: int, inside: float, across: float
) -> None:
    node = template_named(name)
    found = find_switch_graph(node, [gpu.name for gpu in node.gpus[:gpus]], network=network)
    assert found is not None
    assert len(set(found.heads)) == heads
    assert (found.inside, found.across) == (inside, across)


def test_two_gpus_to_a_nic_have_one_head() -> None:
    text = """name: x
node:
  gpus: {count: 4, model: H100}
  nvswitch: {links_per_gpu: 18}
  pcie: {generation: 5, switches: [{gpus: [0, 1], nics: [0]}, {gpus: [2, 3], nics: [1]}]}
  nics: [{count: 2, rate: 400Gb/s}]
"""
    node = parse_topology(text, "x.yaml").groups[0].template
    found = find_switch_graph(node, [gpu.name for gpu in node.gpus], network=True)
    assert found is not None
    assert found.heads == ("gpu0", "gpu2")


@pytest.mark.parametrize(("name", "network"), [("dgx-1v", False), ("dgx-1v", True), ("gh200-quad", False)])
def test_without_a_switch_nothing_reduces_in_one(name: str, network: bool) -> None:
    node = template_named(name)
    assert find_switch_graph(node, [gpu.name for gpu in node.gpus], network=network) is None


def test_one_nic_makes_one_head_which_is_too_few() -> None:
    node = template_named("p5.48xlarge")
    assert find_switch_graph(node, ["gpu0"], network=True) is None
