"""Inside a node: rings that pull, hops from Hopper on, LL by release, rounds through the switch."""

from __future__ import annotations

import pytest

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl.costs import EntryCosts
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.versions import CURRENT, LL128, RING, SIMPLE
from ddpsim.jobs.job_options import CollectiveOptions
from ddpsim.operations import Operation
from ddpsim.topology.spec import load_topology
from ddpsim.units import MIB

PRIORS = Calibration.priors("nccl")
CHANNELS, CHUNK = 24, 2 * MIB


def transport(machine: str, gpus: int, algorithm: str = "ring", version: int = CURRENT) -> NcclTransport:
    layout = Layout(load_topology(machine).place(1, gpus), version)
    return NcclTransport(layout, PRIORS, CollectiveOptions(algorithm=algorithm, isolated=False))


def costs(machine: str, nodes: int, gpus: int) -> EntryCosts:
    layout = Layout(load_topology(machine).place(nodes, gpus), CURRENT)
    return EntryCosts(layout, {name.removeprefix("nccl."): each.value for name, each in PRIORS.constants.items()})


def latency_s(machine: str, gpus: int, size: int) -> float:
    demand = transport(machine, gpus).demand(Operation.ALLREDUCE, size)
    return demand.latency_s + demand.stall_s


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_ring_of_a100_copies_a_chunk_into_its_own_buffer_in_each_of_its_first_loops(gpus: int) -> None:
    loop = CHANNELS * gpus * CHUNK
    copy_s = CHUNK / PRIORS["nccl.channel.simple"]
    whole, four, many = (latency_s("dgx-a100", gpus, times * loop) for times in (1, 4, 16))
    assert four - whole == pytest.approx(3 * copy_s, rel=1e-6)
    assert many == pytest.approx(four, rel=1e-6)
    part = latency_s("dgx-a100", gpus, loop // 2)
    assert whole - part == pytest.approx(copy_s / 2, rel=1e-6)


@pytest.mark.parametrize("machine", ["dgx-1v", "dgx-h100"])
def test_gpus_that_write_to_the_next_one_copy_nothing_first(machine: str) -> None:
    assert latency_s(machine, 4, 1 << 30) == pytest.approx(latency_s(machine, 4, 1 << 32), rel=1e-6)


def test_fewer_cards_lose_more_to_copies_for_the_same_bytes() -> None:
    size = 256 * MIB
    shares = []
    for gpus in (2, 4, 8):
        found = costs("dgx-a100", 1, gpus)
        [entry] = [e for e in found.layout.entries if (e.algorithm, e.protocol) == (RING, SIMPLE)]
        cost = found.of(entry, size)
        shares.append(cost.before_s / cost.time_s(size))
    assert shares == sorted(shares, reverse=True)


def test_ll_reaches_what_nccl_counts_from_2_13_on() -> None:
    old, new = (transport("hgx-a100-4", 4, version=version) for version in (2012, 2013))
    assert old.choice(MIB).protocol == new.choice(MIB).protocol == "ll"
    assert new.time_s(Operation.ALLREDUCE, MIB) < 0.8 * old.time_s(Operation.ALLREDUCE, MIB)


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
