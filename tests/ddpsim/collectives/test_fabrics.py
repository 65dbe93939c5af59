"""What fabric, GPUDirect and PXN change in an allreduce between nodes."""

from __future__ import annotations

import pytest

from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.common.units import MIB
from ddpsim.topology.spec import load_topology, parse_topology
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.shaped import SHAPED_100US

NODE = """
name: x
nodes: 4
node:
  gpus: {count: 4, model: A100}
  nvswitch: {links_per_gpu: 12, bandwidth: 20GB/s}
  pcie:
    generation: 4
    switches:
      - {socket: 0, gpus: [0, 1], nics: [0]}
      - {socket: 1, gpus: [2, 3], nics: [1]}
  cpu: {sockets: 2, vendor: intel, model: skylake}
  nics: [{count: 2, rate: 100Gb/s, kind: infiniband, gpudirect: GPUDIRECT}]
fabric: FABRIC
"""

HOST = SHAPED_100US.replace("{kind: flat}", "FABRIC")
LEAVES = "{kind: two-level, nodes_per_leaf: 2}"


def time_s(fabric: str, *, gpudirect: bool = True, size_bytes: int = 256 * MIB, algorithm: str = "ring") -> float:
    text = NODE.replace("FABRIC", fabric).replace("GPUDIRECT", str(gpudirect).lower())
    return group_on(parse_topology(text, "x").place(4), algorithm=algorithm).simulate_s(size_bytes)


def test_rails_carry_what_one_switch_carries_because_each_channel_keeps_its_nic() -> None:
    assert time_s("{kind: rail}") == pytest.approx(time_s("{kind: flat}"), rel=1e-6)


def test_a_spine_that_never_blocks_changes_nothing_and_an_oversubscribed_one_slows_what_crosses_it() -> None:
    flat = time_s("{kind: flat}")
    assert time_s(LEAVES) == pytest.approx(flat, rel=1e-6)
    # One of a leaf's two nodes sends across, over a trunk of both nodes' NICs divided by 8: a quarter of its own.
    assert time_s("{kind: two-level, nodes_per_leaf: 2, oversubscription: 8}") == pytest.approx(4 * flat, rel=0.05)


@pytest.mark.parametrize("oversubscription", [1, 8])
@pytest.mark.parametrize(
    ("backend", "algorithm"),
    [("nccl", "ring"), pytest.param("nccl", "tree", marks=pytest.mark.needs("minutes")), ("gloo", "auto")],
)
def test_flow_follows_steps_where_some_boundaries_cross_the_spine(
    backend: str, algorithm: str, oversubscription: int
) -> None:
    fabric = f"{{kind: two-level, nodes_per_leaf: 2, oversubscription: {oversubscription}}}"
    text = HOST if backend == "gloo" else NODE.replace("GPUDIRECT", "true")
    placement = parse_topology(text.replace("FABRIC", fabric), "x").place(4)
    flow, steps = (
        group_on(placement, backend, algorithm=algorithm, fidelity=each).simulate_s(64 * MIB)
        for each in ("flow", "steps")
    )
    assert flow == pytest.approx(steps, rel=0.02 if algorithm != "tree" else 0.12)


def test_a_node_that_differs_does_not_load_its_neighbours_cards_twice() -> None:
    text = NODE.replace("GPUDIRECT", "true").replace("FABRIC", "{kind: flat}")
    odd = text + "degraded: [{node: 2, link: gpu0-nvswitch0, bandwidth: 230GB/s}]\n"
    times = [group_on(parse_topology(each, "x").place(4), algorithm="ring") for each in (text, odd)]
    plain, other = (each.simulate_s(256 * MIB) for each in times)
    assert other == pytest.approx(plain, rel=0.02)


def test_without_gpudirect_bytes_rest_in_host_memory_and_take_longer() -> None:
    assert time_s("{kind: flat}", gpudirect=False) > 1.2 * time_s("{kind: flat}")


def test_rings_that_cross_over_stay_on_their_rails() -> None:
    placement = load_topology("dgx-h100").place(4)
    layout = Layout(placement, CURRENT)
    assert any(ring.nic_in != ring.nic_out for ring in layout.channels_of(0).rings)
    assert placement.trunks
    used = {load.link.name for load in layout.ring.loads}
    assert not any("spine" in str(name) for name in used)
