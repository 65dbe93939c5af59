"""Machines that people buy now: they load, and where somebody measured one the prediction is near."""

import pytest

from ddpsim.topology.spec import load_topology, parse_topology
from tests.ddpsim.collectives.groups import group_on


def allreduce_s(name, size, gpus=None):
    return group_on(load_topology(name).place(None, gpus)).simulate_s(size)


def test_cards_without_peer_to_peer_are_slower_than_cards_with_it():
    roots, switched, peers = (
        allreduce_s(name, 1 << 26) for name in ("8xrtx4090", "8xrtx4090-switched", "8xrtxpro6000")
    )
    assert roots > peers
    # Four cards under one switch cross its way up twice.
    assert switched > 2 * roots


@pytest.mark.parametrize(("gpus", "size", "busbw"), [(8, 1 << 26, 22.2), (4, 1 << 25, 30.3)])
def test_rtx_pro_6000_as_measured(gpus, size, busbw):
    # github.com/voipmonitor/rtx6kpro topology.md and hardware/asus-esc8000a-e13p-broadcom-switches.md, 070506ff.
    # Of eight cards 22.2 and 17.8 GB/s were measured on two boxes.
    time_s = allreduce_s("8xrtxpro6000", size, gpus)
    assert 2 * (gpus - 1) / gpus * size / time_s / 1e9 == pytest.approx(busbw, rel=0.2)


def test_a_gpu_of_the_table_needs_no_sm():
    machine = "name: m\nnode: {gpus: {count: 2, model: RTX5090}, cpu: {sockets: 1, vendor: amd, model: rome}}\n"
    assert parse_topology(machine, "m").groups[0].template.gpus[0].sm == 120
