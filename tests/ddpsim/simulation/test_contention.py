"""What collectives take from computation: shares of a GPU by hand, and the orders that have to hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from ddpsim.bucketing.caps import BucketCaps
from ddpsim.cli.predict import format_hidden_cost
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import GIVEN
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.prediction.predict import predict
from ddpsim.simulation.contention import UNKNOWN_GPU, ComputeSlowdown, Share, share_of
from ddpsim.simulation.ddp_costs import Costs, remove_overlap_costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.graph import Collective
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import GPUS
from tests.ddpsim.simulation.builders import ALIKE, workload
from tests.ddpsim.simulation.test_blocking import blocks

MACHINE = load_topology("dgx-1v")
MODEL = load_workload("resnet50@v100-fp32-b32")
PRIORS = Calibration.priors("nccl")
COSTS = replace(Costs.of("nccl", None), channel_multiprocessors=2.0, memory_passes=3.0)
SIZE = 25 << 20
ALLREDUCE = Collective(SIZE, Operation.ALLREDUCE, 0, 0)


def given(**values):
    return PRIORS.with_values({f"nccl.ddp.{name}": value for name, value in values.items()}, source=GIVEN)


def test_a_share_is_channels_over_multiprocessors_and_traffic_over_bandwidth():
    transport = make_transport(MACHINE.place(1, 8), "nccl")
    channels, time_s = transport.choice(SIZE).channels, transport.allreduce_s(SIZE)
    found = share_of(COSTS, GPUS["V100"], transport, 8, SIZE)
    assert found.multiprocessors == pytest.approx(2 * channels / 80)
    assert found.bandwidth == pytest.approx(3 * 2 * 7 / 8 * SIZE / time_s / 900e9)
    assert share_of(COSTS, GPUS["V100"], transport, 1, SIZE) == share_of(COSTS, GPUS["V100"], transport, 8, 0)


def test_a_switch_that_adds_is_sent_a_message_once():
    transport = make_transport(load_topology("dgx-h100").place(1, 8), "nccl")
    assert transport.choice(SIZE).algorithm == "nvls"
    found = share_of(COSTS, GPUS["H100"], transport, 8, SIZE)
    assert found.bandwidth == pytest.approx(3 * SIZE / transport.allreduce_s(SIZE) / GPUS["H100"].memory_Bps)


def test_each_resource_slows_the_part_of_computation_that_it_bounds():
    assert ComputeSlowdown(None, lambda _: Share(0, 0), 1.0).factor(Share(0.2, 0.5)) == pytest.approx(1.25)
    assert ComputeSlowdown(None, lambda _: Share(0, 0), 0.0).factor(Share(0.2, 0.5)) == pytest.approx(2.0)
    assert ComputeSlowdown(None, lambda _: Share(0, 0), 0.5).factor(Share(0.2, 0.5)) == pytest.approx(1.625)
    tail = ComputeSlowdown(None, lambda _: Share(0, 0), 0.5, tail_share=0.2)
    assert tail.factor(Share(0.2, 0.5)) == pytest.approx(1.725)
    assert tail.factor(Share(0.0, 0.5)) == pytest.approx(1.5)
    assert ComputeSlowdown(1.1, lambda _: Share(0, 0), 0.5).factor(Share(0.2, 0.5)) == 1.1


def test_a_larger_gpu_pays_less_and_one_that_nobody_described_pays_as_the_one_that_is_named():
    transport = make_transport(MACHINE.place(1, 8), "nccl")

    def factor(device):
        costs, capacity = Costs.of("nccl", None), GPUS.get(device)
        taken = partial(share_of, costs, capacity, transport, 8)
        found = ComputeSlowdown.of(costs, MODEL.arithmetic_share, lambda each: taken(each.size_bytes))
        return found.factor(found.taken(ALLREDUCE))

    assert factor("V100") > factor("A100") > factor("H100") > 1
    assert factor("a card of tomorrow") == factor(UNKNOWN_GPU)


def test_devices_of_a_generation_that_was_measured_differ_as_it_does():
    v100, a100, h100, b200 = (Costs.of("nccl", None, device) for device in ("V100", "A100", "H100", "B200"))
    assert v100.pace_spread > a100.pace_spread == 0.008 > h100.pace_spread == b200.pace_spread == 0.001
    assert v100.shared_compute_slowdown > h100.shared_compute_slowdown == b200.shared_compute_slowdown == 1.002
    assert a100.shared_compute_slowdown == 1.0
    card = Costs.of("nccl", None, "A100-PCIe")
    assert (card.pace_spread, card.node_spread) == (v100.pace_spread, a100.node_spread)
    assert Costs.of("nccl", None, "RTXPRO6000").pace_spread == v100.pace_spread
    assert Costs.of("nccl", given(pace_spread=0.1), "H100").pace_spread == 0.1
    assert Costs.of("gloo", None, "H100").pace_spread == 0.0
    assert a100.node_spread > h100.node_spread > v100.node_spread == b200.node_spread == 0.0
    assert Costs.of("nccl", None, "RTX3090").node_spread == Costs.of("gloo", None, "A100").node_spread == 0.0
    assert Costs.of("nccl", given(node_spread=0.1), "H100").node_spread == 0.1


def test_what_is_measured_or_given_stands_in_place_of_what_is_derived():
    fixed = ComputeSlowdown.of(Costs.of("nccl", given(compute_slowdown=1.3)), 1.0, lambda each: Share(1.0, 1.0))
    assert fixed.factor(fixed.taken(ALLREDUCE)) == 1.3
    derived = Costs.of("nccl", None)
    assert Costs.of("nccl", given(enter_s=1e-5)).entering_s(1.0) == 1e-5
    assert derived.entering_s(1.0) == derived.tail_share
    hops = {"nvlink": 0.2, "host": 1.0}
    assert derived.slowdown_of(hops) == derived.staged_slowdown > derived.nvlink_slowdown
    # Host memory that is a quarter of the way to a network card is no bottleneck even where it is slowed most.
    assert derived.slowdown_of({"host": 0.25, "net": 1.0}) == derived.net_slowdown
    assert Costs.of("nccl", given(communication_slowdown=1.5)).slowdown_of(hops) == 1.5
    assert Costs.of("gloo", None).slowdown_of({}) == 1.0


def test_the_cost_of_hidden_communication_is_the_step_less_the_undisturbed_one():
    found = predict(Job(MODEL, MACHINE))
    free = predict(Job(MODEL, MACHINE, calibration=remove_overlap_costs("nccl", None)))
    assert found.hidden_comm_cost_s == pytest.approx(found.iteration_s - free.iteration_s, rel=1e-6)
    assert found.document()["hidden_comm_cost_s"] == found.hidden_comm_cost_s > 0
    assert free.hidden_comm_cost_s == 0.0
    assert predict(Job(MODEL, MACHINE), band=False).hidden_comm_cost_s is None
    assert predict(Job(MODEL, MACHINE, gpus_per_node=1)).hidden_comm_cost_s == 0.0
    assert predict(Job(MODEL, MACHINE, options=Options(comm="noop"))).hidden_comm_cost_s == 0.0
    assert predict(Job(MODEL, MACHINE, options=Options(backend="gloo"))).hidden_comm_cost_s == 0.0


def test_the_output_says_whether_the_cost_rests_on_priors():
    told = predict(Job(MODEL, MACHINE, calibration=given(compute_slowdown=1.2, communication_slowdown=1.1)))
    prior = predict(Job(MODEL, MACHINE))
    for found, known in ((told, True), (prior, False)):
        assert found.document()["provenance"]["hidden_comm_known"] is known
        [line] = format_hidden_cost(found)
        assert line.endswith("that overlaps it" if known else "that overlaps it (assumed, not measured)")
        assert f"{100 * found.hidden_comm_cost_s / found.iteration_s:.1f} %" in line
    assert format_hidden_cost(predict(Job(MODEL, MACHINE, gpus_per_node=1))) == []


def test_computation_slows_the_messages_of_every_group_that_meets_beside_it():
    """Shards reduce in each node, then replicas across nodes: either takes longer while the ranks compute."""
    source, placement = blocks(workload(device="V100", size=2_000_000)), load_topology("dgx-1v").place(2)

    def wire_s(slowdown: float) -> dict[Operation, float]:
        given = ALIKE.with_values({"nccl.ddp.communication_slowdown": slowdown}, source="test")
        trace = simulate(source, placement, Options(scheme="hsdp:8"), given)
        taken: dict[Operation, float] = {}
        for bucket in trace.iterations[-1].buckets:
            taken[bucket.operation] = taken.get(bucket.operation, 0.0) + bucket.finished_s - bucket.wire_s
        return taken

    alone, beside = wire_s(1.0), wire_s(1.5)
    assert {Operation.REDUCE_SCATTER, Operation.ALLREDUCE} <= set(alone)
    assert all(alone[each] * 1.1 < beside[each] <= alone[each] * 1.5 * (1 + 1e-9) for each in alone if alone[each] > 0)


@pytest.mark.parametrize(
    "options",
    [
        Options(scheme="naive"),
        Options(overlap="off"),
        Options(scheme="horovod", overlap="off"),
        Options(scheme="flat"),
        Options(scheme="multiworker-mirrored"),
    ],
    ids=lambda options: f"{options.scheme}, overlap {options.overlap}",
)
def test_a_collective_beside_no_computing_neither_waits_for_a_kernel_nor_takes_from_one(options: Options) -> None:
    base = predict(Job(MODEL, MACHINE, nodes=2, options=options), band=False)
    for costs in (given(late_kernels=20.0), given(enter_s=1e-3)):
        other = predict(Job(MODEL, MACHINE, nodes=2, options=options, calibration=costs), band=False)
        assert other.summary.iteration_s == pytest.approx(base.summary.iteration_s, rel=1e-9)


def test_only_a_bucket_beside_computing_waits_for_a_kernel() -> None:
    """Behind the last gradient nothing is computed, so the last bucket waits for none."""
    small, each = workload(device="V100"), Options(caps=BucketCaps(bucket_cap_mb=0), iterations=2)
    kernels = 0.5
    waits = {"nccl.ddp.late_kernels": kernels, "nccl.ddp.tail_share": 0.0}
    found = predict(Job(small, MACHINE, options=each, calibration=ALIKE.with_values(waits, source=GIVEN)), band=False)
    free = predict(Job(small, MACHINE, options=each, calibration=ALIKE), band=False)
    later = [a.started_s - b.started_s for a, b in zip(found.summary.buckets, free.summary.buckets, strict=True)]
    kernel_s = 0.08 / 8 / 2
    assert later[:-1] == pytest.approx([kernels * kernel_s] * 7)
    assert later[-1] == pytest.approx(0.0, abs=1e-9)
