"""What NCCL's model is told of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.collectives.ring_search import RingSearch
from ddpsim.topology.paths import Paths
from ddpsim.topology.spec import parse_topology

OWN_NIC = """name: x
nodes: 2
node:
  gpus: {count: 2, model: MODEL}
  nvswitch: {links_per_gpu: 12}
  pcie: {switches: [{gpus: [0], nics: [0]}, {gpus: [1], nics: [1]}]}
  nics: [{count: 2, rate: 200Gb/s}]
"""


@pytest.mark.parametrize(("model", "allowed"), [("A100", False), ("H100", True)])
def test_ll128_goes_through_another_gpu_to_a_nic_from_hopper_on(model: str, allowed: bool) -> None:
    layout = Layout(parse_topology(OWN_NIC.replace("MODEL", model), "x.yaml").place(2), CURRENT)
    assert layout.channels_of(0).nic_kind == "PXN"
    assert layout.shape.ll128 is allowed


def test_nodes_of_a_kind_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[tuple[str, ...]] = []

    class Counted(RingSearch):
        def __init__(
            self, paths: Paths, capacities: dict[str, float], gpus: Sequence[str], *more: Any, **kw: Any
        ) -> None:
            searches.append(tuple(gpus))
            super().__init__(paths, capacities, gpus, *more, **kw)

    monkeypatch.setattr("ddpsim.collectives.channels.RingSearch", Counted)
    # A bandwidth that no other test has, so that nothing is known yet.
    text = (
        "name: x\nnodes: 64\nnode: dgx-1v\n"
        "degraded: [{link: gpu0-gpu1, bandwidth: 19.125GB/s}, {node: 7, link: gpu0-gpu2, bandwidth: 9.125GB/s}]\n"
    )
    placement = parse_topology(text, "x.yaml").place()
    Layout(placement, CURRENT)
    assert len(searches) == 2  # node 7 and the others
    Layout(placement, CURRENT, expand=True)
    Layout(placement, 2008)
    assert len(searches) == 2
