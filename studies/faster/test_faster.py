"""A faster machine is slower only where NCCL picks another entry of its table, and the page lists every such case."""

from __future__ import annotations

import pytest

from ddpsim.common.units import MIB
from ddpsim.topology.hardware import nic_kind
from ddpsim.topology.spec import load_topology
from studies.faster.faster import LINES, MOST, TARGET, Case, cases, doubled, page, slower

MACHINES = ("p3dn.24xlarge", "dgx-1v", "dgx-a100", "ncv4-4", "8xl40s-pcie", "dgx-h100")
SAMPLE = [case for case in cases(MACHINES) if case.nodes in (1, 2, 16)]
SIZES = (1 << 16, MIB, 4 * MIB, 64 * MIB)


def test_what_is_slower_is_the_choice_and_stands_on_the_page() -> None:
    found = list(slower(SAMPLE, SIZES))
    assert found
    listed = TARGET.read_text(encoding="utf-8")
    for each in found:
        assert each.part > MOST
        assert each.entries <= 1 + 1e-9, each
        nics = [nic for group in load_topology(each.case.machine).groups for nic in group.template.nics]
        # NCCL counts a port at its rate, of which sockets carry what their threads move.
        sockets = any(nic_kind(nic.kind).threads for nic in nics)
        assert sockets or (each.picked[1].algorithm, each.picked[1].protocol) in LINES
        (row,) = [line for line in page([each], 1).splitlines() if line.startswith(f"| {each.case.machine} ")]
        assert row in listed


@pytest.mark.parametrize("name", ["dgx-a100", "8xl40s-pcie"])
def test_a_doubled_machine_has_every_link_of_the_kind_twice_as_fast_and_no_other(name: str) -> None:
    before = load_topology(name)
    kinds = {link.kind for group in before.groups for link in group.template.links}
    for kind in ("all", *kinds - {"network"}):
        after = doubled(before, kind)
        for old, new in zip(before.groups, after.groups, strict=True):
            for link, faster in zip(old.template.links, new.template.links, strict=True):
                moved = kind in ("all", link.kind) or (kind == "nic" and link.kind == "network")
                assert faster.bandwidth == link.bandwidth * (2 if moved else 1)


def test_cases_are_of_nodes_that_the_machine_has() -> None:
    assert {case.nodes for case in cases(["8xrtx4090"])} == {1}
    assert Case("dgx-a100", 16, "nvlink") in cases(["dgx-a100"])
    assert cases(["lab-flat"]) == []
