"""Two collectives on the same links: the fluid form against every single transfer."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import simpy

from ddpsim.common.units import MIB
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.shaped import shaped
from tests.profile import LARGE

SIZES = (MIB // 4, MIB, 5 * MIB, 25 * MIB, 48 * MIB, 96 * MIB)
UNEQUAL = [pair for pair in product(SIZES, SIZES) if pair[0] != pair[1]]
OFFSETS = (0.0, 0.13, 0.5)
"""When the second starts, in times the first takes alone."""


@cache
def placed(machine: str) -> tuple[Placement, str]:
    if machine == "gloo":
        return shaped(4, "0.1ms"), "gloo"
    name, _, nodes = machine.partition(" x")
    return load_topology(name).place(int(nodes or 1)), "nccl"


def times_s(machine: str, fidelity: str, sizes: tuple[int, int], offset: float) -> list[float]:
    placement, backend = placed(machine)
    both = group_on(placement, backend, fidelity=fidelity, algorithm="ring")
    took = [0.0, 0.0]

    def start(index: int, at_s: float) -> simpy.events.ProcessGenerator:
        yield both.env.timeout(at_s)
        yield both.allreduce(sizes[index])
        took[index] = both.env.now - at_s

    both.env.process(start(0, 0.0))
    both.env.process(start(1, offset * both.estimate_s(sizes[0])))
    both.env.run()
    return took


def worst(machine: str, pairs: list[tuple[int, int]], offsets: tuple[float, ...]) -> tuple[float, object]:
    """Return the largest relative difference of flow from steps, and where."""
    return max(
        (abs(flow / steps - 1), (sizes, offset))
        for sizes, offset in product(pairs, offsets)
        for flow, steps in zip(
            times_s(machine, "flow", sizes, offset), times_s(machine, "steps", sizes, offset), strict=True
        )
    )


@pytest.mark.parametrize("machine", ["dgx-1v", "dgx-a100", "dgx-1v x2", "p3.8xlarge x2", "4x1080ti-pcie", "gloo"])
@pytest.mark.parametrize("offset", OFFSETS)
def test_unequal_pairs_end_within_five_percent(machine: str, offset: float) -> None:
    pairs = UNEQUAL if machine != "gloo" else UNEQUAL[:15]
    if not LARGE:  # each size is the first of some pair, and the second of another
        pairs = pairs[OFFSETS.index(offset) :: 3]
    if offset == 0:  # the larger first is the same
        pairs = [(one, other) for one, other in pairs if one < other]
    difference, where = worst(machine, pairs, (offset,))
    assert difference < BEYOND.get(machine, 0.05), where


BEYOND = {"4x1080ti-pcie": 0.088, "dgx-1v x2": 0.14, "dgx-a100": 0.085}
"""Where five percent are missed: 256 KiB beside 96 MiB, or beside as many, on cards behind two sockets; 48 MiB beside
96 MiB, LL128 beside Simple, which leaves the other more of a NIC while it waits than the fluid form says; 1 MiB beside
5 MiB or more on eight A100, whose 14 short steps by LL wait behind the other's chunks, for 3 to 5 us of 50 in all,
while the fluid form sees links that are never full."""


@pytest.mark.parametrize("machine", ["dgx-1v", "dgx-a100", "dgx-1v x2", "p3.8xlarge x2", "4x1080ti-pcie", "gloo"])
def test_equal_pairs_from_one_instant_end_within_five_percent(machine: str) -> None:
    difference, where = worst(machine, [(size, size) for size in SIZES], (0.0,))
    assert difference < (BEYOND[machine] if machine == "4x1080ti-pcie" else 0.05), where


@pytest.mark.parametrize("sizes", [(5 * MIB, 64 * MIB), (25 * MIB, 25 * MIB), (48 * MIB, 96 * MIB)])
def test_many_channels_over_two_nodes(sizes: tuple[int, int]) -> None:
    difference, where = worst("dgx-a100 x2", [sizes], (0.0,))
    assert difference < 0.05, where


@pytest.mark.parametrize("machine", ["dgx-1v x2", "dgx-1v"])
def test_equal_pairs_apart_end_within_five_percent_and_on_one_dgx_1v_within_ten(machine: str) -> None:
    difference, where = worst(machine, [(size, size) for size in SIZES[2:]], OFFSETS[1:])
    # Two of 5 MiB on one node keep their phase, as where all hops are alike.
    assert difference < {"dgx-1v": 0.1}.get(machine, 0.05), where


@pytest.mark.parametrize("size", SIZES[2:])
@pytest.mark.parametrize("offset", OFFSETS[1:])
def test_equal_pairs_apart_keep_their_phase_where_all_hops_are_alike(size: int, offset: float) -> None:
    # Their steps have one period: they meet at each or at none, where the fluid form takes the average of both.
    machine = "dgx-a100"
    placement, backend = placed(machine)
    at_none_s = group_on(placement, backend, algorithm="ring").estimate_s(size)
    at_each_s = max(times_s(machine, "steps", (size, size), 0.0))
    for fidelity in ("flow", "steps"):
        for took_s in times_s(machine, fidelity, (size, size), offset):
            assert 0.99 * at_none_s < took_s < 1.01 * at_each_s
    flow_s, steps_s = (max(times_s(machine, fidelity, (size, size), offset)) for fidelity in ("flow", "steps"))
    assert abs(flow_s - steps_s) < (at_each_s - at_none_s) / 2
