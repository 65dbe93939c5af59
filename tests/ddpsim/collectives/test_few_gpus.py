"""Inside a node: rings that pull, hops from Hopper on, LL by release, rounds through the switch."""

from __future__ import annotations

import pytest

from ddpsim import Calibration, load_topology
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.nccl.costs import Cost, EntryCosts
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.versions import CURRENT, LL128, RING, SIMPLE
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB

PRIORS = Calibration.priors("nccl")
CHANNELS, CHUNK = 24, 2 * MIB


def transport(machine: str, gpus: int, algorithm: str = "ring", version: int = CURRENT) -> NcclTransport:
    layout = Layout(load_topology(machine).place(1, gpus), version)
    return NcclTransport(layout, PRIORS, CollectiveOptions(algorithm=algorithm, isolated=False))


def costs(machine: str, nodes: int, gpus: int) -> EntryCosts:
    layout = Layout(load_topology(machine).place(nodes, gpus), CURRENT)
    return EntryCosts(layout, {name.removeprefix("nccl."): each.value for name, each in PRIORS.constants.items()})


def ring(machine: str, gpus: int, size: int) -> Cost:
    """Return what a ring by Simple takes."""
    found = costs(machine, 1, gpus)
    [entry] = [each for each in found.layout.entries if (each.algorithm, each.protocol) == (RING, SIMPLE)]
    return found.of(entry, size)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_ring_of_a100_copies_a_chunk_into_its_own_buffer_in_each_of_its_first_loops(gpus: int) -> None:
    loop = CHANNELS * gpus * CHUNK
    copy_s = CHUNK / PRIORS["nccl.channel.simple"]
    for loops, copies in ((0.5, 0.5), (1, 1), (4, 4), (16, 4)):
        found = ring("dgx-a100", gpus, int(loops * loop))
        assert found.before_s == pytest.approx(copies * copy_s)
        assert found.latency_s > found.before_s


@pytest.mark.parametrize("machine", ["dgx-1v", "dgx-h100"])
def test_gpus_that_write_to_the_next_one_copy_nothing_first(machine: str) -> None:
    assert ring(machine, 4, 1 << 32).before_s == 0


def test_fewer_cards_lose_more_to_copies_for_the_same_bytes() -> None:
    found = [ring("dgx-a100", gpus, 256 * MIB) for gpus in (2, 4, 8)]
    shares = [cost.before_s / cost.time_s(256 * MIB) for cost in found]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 4 * shares[2]


def test_ll_reaches_what_nccl_counts_from_2_13_on() -> None:
    old, new = (transport("dgx-a100", 8, version=version) for version in (2012, 2013))
    size = MIB // 2
    assert old.choice(size).protocol == new.choice(size).protocol == "ll"
    assert new.time_s(Operation.ALLREDUCE, size) < 0.9 * old.time_s(Operation.ALLREDUCE, size)


def test_chunks_through_the_switch_double_at_nccl_s_thresholds() -> None:
    nvls = transport("dgx-h100", 8, "nvls")
    # 16 channels of 8 heads: 8 rounds of 64 KiB are 64 MiB, 64 of 128 KiB 1 GiB.
    for threshold in (64 * MIB, 1024 * MIB):
        below, at = (nvls.demand(Operation.ALLREDUCE, size).rate_limit for size in (threshold - MIB, threshold))
        assert at > 1.03 * below


def test_hops_of_hopper_by_ll128_in_a_node_are_a_part_of_older_gpus() -> None:
    one, two = (costs("dgx-h100", nodes, 4) for nodes in (1, 2))
    hop_s = PRIORS["nccl.ring.hop.nvswitch.ll128_s"]
    assert one.hop_s(RING, LL128) == hop_s * PRIORS["nccl.hopper.hop.ll128"]
    assert two.hop_s(RING, LL128) == hop_s * PRIORS["nccl.hopper.latency"]
