"""The simulation held to closed forms of what one step must take."""

import dataclasses
from statistics import fmean, median

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives
from ddpsim.common.operation import Operation
from ddpsim.simulation.contention import UNDISTURBED, Processor
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate, simulate_local
from ddpsim.simulation.graph import Collective
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Buffer
from tests.ddpsim.simulation.builders import every_rank, period, place, wire_s, workload
from tests.profile import examples

ONE_BUCKET = BucketCaps(bucket_cap_mb=1000)


def options(**given):
    return Options(backend="gloo", **given)


@pytest.mark.parametrize("view", [False, True])
def test_a_cpu_step_with_one_bucket_is_a_sum(view):
    source, placement, costs = workload(), place(), Costs.of("gloo", None)
    size = source.gradient_bytes
    copies = size / costs.copy_Bps * (1 if view else 2)
    own = costs.forward_s + 8 * costs.hook_s + copies + costs.launch_s + costs.finish_s
    given = options(caps=ONE_BUCKET, gradient_as_bucket_view=view)
    expected = 0.03 + 0.08 + 0.01 + own + wire_s(placement, size)
    assert period(simulate(source, placement, given)) == pytest.approx(expected, rel=1e-9)


def test_a_device_bound_gpu_step_with_one_bucket_hides_the_host():
    source, placement = workload(device="V100", size=2_000_000), place()
    size = source.gradient_bytes
    copies = 2 * Costs.of("gloo", None, "V100").copies_s(8, size)
    expected = 0.12 + copies + wire_s(placement, size)
    assert period(simulate(source, placement, options(caps=ONE_BUCKET))) == pytest.approx(expected, rel=1e-6)


def test_a_host_bound_step_pays_for_every_hook():
    source, costs = workload(device="V100", host_share=1.0), Costs.of("gloo", None, "V100")
    without = median(it.iteration_s for it in simulate_local(source, options()))
    noop = period(simulate(source, place(), options(comm="noop")))
    assert without == pytest.approx(0.12)
    launched = costs.launch_s + costs.finish_s  # under 25 MiB: two buckets, the first of one gradient
    copies = 2 * costs.copies_s(8, source.gradient_bytes)
    assert noop - without >= 8 * costs.hook_s + costs.forward_s
    assert noop - without <= 8 * costs.hook_s + costs.forward_s + 2 * launched + copies


def test_hidden_communication_costs_nothing_but_the_last_bucket():
    source, placement, costs = workload(backward=8.0), place(), Costs.of("gloo", None)
    trace = simulate(source, placement, options(caps=BucketCaps(bucket_cap_mb=0), gradient_as_bucket_view=True))
    last = wire_s(placement, 1_000_000)
    # What the first seven buckets' write-back takes hides under the wait for the last.
    own = (
        costs.forward_s + 8 * (costs.hook_s + costs.launch_s) + costs.finish_s + source.gradient_bytes / costs.copy_Bps
    )
    assert period(trace) == pytest.approx(0.04 + 8.0 + own + last, rel=1e-9)
    assert summarise(trace).overlap_ratio == pytest.approx(1 - 1 / 8, abs=0.01)


@pytest.mark.parametrize("device", ["cpu", "V100"])
def test_the_parts_sum_and_times_are_in_order(device):
    source = workload(device=device, iterations=4, jitter=0.3, buffers=3)
    trace = simulate(source, place(ranks=4), options(caps=BucketCaps(bucket_cap_mb=2)))
    for it in trace.iterations:
        assert min(it.forward_s, it.backward_compute_s, it.optimizer_s, it.buffer_broadcast_s) > 0
        assert min(it.exposed_comm_s, it.ddp_overhead_s) >= -1e-12
        assert [b.index for b in it.buckets] == list(range(len(it.buckets)))
        for bucket in it.buckets:
            assert bucket.launched_s <= bucket.started_s <= bucket.wire_s < bucket.finished_s <= bucket.written_s
            assert bucket.ready_s <= bucket.started_s


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["cpu", "V100"]))
def test_the_same_seed_gives_the_same_trace(seed, device):
    source = workload(device=device, iterations=5, jitter=0.3)
    first, second = (simulate(source, place(ranks=3), options(seed=seed)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("device", ["cpu", "V100"])
@pytest.mark.parametrize("ranks", [3, 8])
@pytest.mark.parametrize(("cycle", "sync"), [(1, "last"), (4, "last"), (4, "every")])
def test_rank_0_and_the_latest_of_the_others_stand_for_every_rank(device, ranks, cycle, sync):
    source = workload(device=device, iterations=12, jitter=0.5)
    given = options(caps=BucketCaps(bucket_cap_mb=2), iterations=60, accumulate=cycle, sync=sync)
    placement = place(ranks=ranks)
    two, every = (period(simulated(source, placement, given)) for simulated in (simulate, every_rank))
    assert two == pytest.approx(every, rel=0.01)
    alone = fmean(it.iteration_s for it in simulate_local(source, given))
    assert every > alone * 1.02  # the maximum over ranks, not the mean


def test_a_straggler_shows_as_skew_on_the_others():
    source = workload(backward=0.8)
    trace = simulate(source, place(ranks=3), options(caps=ONE_BUCKET, stragglers={2: 1.5}))
    lost = 0.5 * (0.03 + 0.8 + 0.01)
    bucket = summarise(trace).buckets[0]
    assert bucket.skew_s == pytest.approx(lost, rel=0.01)
    assert trace.ranks == [0, 2]
    assert trace.of_rank(2)[0].buckets[0].wire_s == pytest.approx(trace.of_rank(2)[0].buckets[0].started_s)


def test_a_step_of_four_reduces_once():
    source, given = workload(), options(accumulate=4, iterations=3)
    trace = simulate(source, place(), given)
    every = period(simulate(source, place(), options()))
    alone = median(it.iteration_s for it in simulate_local(source, given))
    forward = Costs.of("gloo", None).forward_s
    assert period(trace) == pytest.approx((3 * (alone + forward) + every) / 4, rel=1e-6)


def test_waiting_for_the_bitmap_of_unused_parameters_is_exposed():
    source, placement = workload(device="V100", size=2_000_000), place("dgx-1v")
    given = Options(assignment="unused", caps=ONE_BUCKET, gradient_as_bucket_view=True)
    plain, asked = (
        summarise(simulate(source, placement, dataclasses.replace(given, find_unused_parameters=unused)))
        for unused in (False, True)
    )
    assert asked.exposed_comm_s - plain.exposed_comm_s == pytest.approx(
        wire_s(placement, 8 * 4, backend="nccl"), rel=0.01
    )
    assert asked.ddp_overhead_s == pytest.approx(plain.ddp_overhead_s, abs=1e-9)


def test_more_process_groups_overlap_latency():
    source = workload(gradients=32, size=64, backward=1e-4)
    caps = BucketCaps(bucket_cap_mb=0)
    one, two = (period(simulate(source, place(ranks=4), options(caps=caps, process_groups=n))) for n in (1, 2))
    assert two < one


def test_without_communication_no_rank_waits_for_another():
    trace = simulate(workload(buffers=2), place(ranks=4), options(comm="noop", stragglers={1: 3.0}))
    assert all(it.buffer_broadcast_s == 0 for it in trace.iterations)
    assert all(it.exposed_comm_s == 0 for it in trace.iterations)
    assert period(trace) > 2.9 * median(it.iteration_s for it in trace.of_rank(0))


def with_costs(**values):
    priors = Calibration.priors("gloo")
    return priors.with_values({f"gloo.ddp.{name}": value for name, value in values.items()}, source="test")


def test_measured_slowdowns_stretch_what_they_name():
    source, given = workload(backward=0.8), options(caps=BucketCaps(bucket_cap_mb=1))
    plain = summarise(simulate(source, place(), given))
    shared = summarise(simulate(source, place(), given, with_costs(shared_compute_slowdown=1.5)))
    assert shared.forward_s == pytest.approx(1.5 * plain.forward_s)
    assert shared.backward_compute_s == pytest.approx(1.5 * plain.backward_compute_s)
    alone = summarise(simulate(source, place(ranks=1), given, with_costs(shared_compute_slowdown=1.5)))
    assert alone.forward_s == pytest.approx(plain.forward_s)
    recorded_beside_others = dataclasses.replace(source, ranks=2)
    again = summarise(simulate(recorded_beside_others, place(), given, with_costs(shared_compute_slowdown=1.5)))
    assert again.forward_s == pytest.approx(plain.forward_s)

    on_gpu = workload(device="V100", backward=0.8)
    gpu, gpu_shared = (
        summarise(simulate(on_gpu, place(), given, with_costs(shared_compute_slowdown=f))) for f in (1.0, 1.5)
    )
    assert gpu_shared.forward_s == pytest.approx(1.5 * gpu.forward_s)

    slowed = summarise(simulate(source, place(), given, with_costs(compute_slowdown=2.0)))
    beside = sum(b.finished_s - b.wire_s for b in plain.buckets[:-1])
    assert slowed.backward_compute_s - plain.backward_compute_s == pytest.approx(beside / 2, rel=0.05)

    busy = summarise(simulate(source, place(), given, with_costs(communication_slowdown=3.0)))
    first, first_plain = busy.buckets[0], plain.buckets[0]
    assert first.finished_s - first.wire_s > 1.5 * (first_plain.finished_s - first_plain.wire_s)
    # Beside the last bucket the host only writes the others back; what lies on the wire then takes three times as long.
    longer = (busy.buckets[-1].finished_s - busy.buckets[-1].wire_s) - (
        plain.buckets[-1].finished_s - plain.buckets[-1].wire_s
    )
    written = sum(b.size_bytes for b in plain.buckets[:-1]) / Costs.of("gloo", None).copy_Bps
    assert 0 < longer < 2 * (written + len(plain.buckets) * Costs.of("gloo", None).finish_s)


def test_copies_beside_a_collective_take_longer():
    env = simpy.Environment()
    processor = Processor(env, UNDISTURBED, lambda busy: None, copy_slowdown=2.0)
    env.run(env.process(processor.serve(1.0)))
    assert env.now == 1.0
    processor.collective_begins(Collective(1, Operation.ALLREDUCE, 0, 0))
    env.run(env.process(processor.serve(1.0)))
    assert env.now == 3.0


def test_copies_hold_up_the_steps_of_a_collective():
    # At 100 MB/s the write-back of the first buckets outlasts the last bucket's allreduce.
    source, given = workload(backward=0.8), options(caps=BucketCaps(bucket_cap_mb=1))
    calm, held_up = (
        summarise(simulate(source, place(), given, with_costs(step_slowdown=factor, copy_Bps=1e8)))
        for factor in (1.0, 100.0)
    )
    assert held_up.buckets[-1].wire_s == pytest.approx(calm.buckets[-1].wire_s, rel=0.05)
    assert held_up.buckets[-1].finished_s > 2 * calm.buckets[-1].finished_s - calm.buckets[-1].wire_s


def test_each_bucket_costs_a_gpus_computation_its_entry_and_a_world_of_one_none():
    priors = Calibration.priors("gloo")
    entering = priors.with_values({"gloo.ddp.enter_s": 1e-3}, source="test")
    source, given = workload(device="V100", backward=8.0), options(caps=BucketCaps(bucket_cap_mb=1))
    for ranks, comm, cost in ((2, "real", 1e-3), (2, "noop", 0.0), (1, "real", 0.0)):
        chosen = dataclasses.replace(given, comm=comm)
        plain, slower = (summarise(simulate(source, place(ranks=ranks), chosen, c)) for c in (priors, entering))
        assert len(plain.buckets) > 2
        count, more = len(plain.buckets), slower.iteration_s - plain.iteration_s
        # The last bucket's may hide under the wait for that bucket.
        assert (count - 1) * cost - 1e-9 <= more <= count * cost + 1e-9


def test_buffers_are_broadcast_a_message_a_dtype_before_each_synced_forward():
    source = workload(buffers=3)
    counter = Buffer("steps", (1,), "int64")
    source = dataclasses.replace(source, buffers=(*source.buffers, counter))
    placement, costs = place(ranks=4), Costs.of("gloo", None)
    collectives = Collectives(simpy.Environment(), placement, backend="gloo", calibration=None)
    start = collectives.env.now
    collectives.env.run(collectives.broadcast(3 * 64 * 4))
    first = collectives.env.now - start
    collectives.env.run(collectives.broadcast(8))
    second = collectives.env.now - start - first
    found = summarise(simulate(source, placement, options(accumulate=1))).buffer_broadcast_s
    own = 4 * costs.buffer_s + 2 * costs.launch_s
    assert max(first, second) <= found - own + costs.launch_s
    assert found <= own + first + second
    slow = simulate(source, placement, options(), with_costs(broadcast_s=0.02))
    assert summarise(slow).buffer_broadcast_s == pytest.approx(own + 0.02)
    off = summarise(simulate(source, placement, options(broadcast_buffers=False)))
    assert off.buffer_broadcast_s == 0


@pytest.mark.parametrize("device", ["cpu", "V100"])
def test_a_stragglers_cost_is_exposed_skew_and_not_wire_time(device):
    source, placement = workload(device=device, size=2_000_000), place()
    wire = wire_s(placement, source.gradient_bytes)
    for stragglers, skew in (({}, 0.0), ({1: 1.5}, 0.5 * 0.12)):
        trace = every_rank(source, placement, options(caps=ONE_BUCKET, stragglers=stragglers))
        summary = summarise(trace)
        assert summary.exposed_comm_s - summary.exposed_skew_s == pytest.approx(wire, rel=1e-6)
        assert summary.exposed_skew_s == pytest.approx(skew, abs=1e-9)
        blind = [
            dataclasses.replace(it, buckets=tuple(dataclasses.replace(b, wire_s=None) for b in it.buckets))
            for it in trace.iterations
        ]
        assert summarise(dataclasses.replace(trace, iterations=blind)).exposed_skew_s == summary.exposed_skew_s
        alone = [it for it in blind if it.rank == 0]
        assert summarise(dataclasses.replace(trace, iterations=alone)).exposed_skew_s is None


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from(["cpu", "V100"]), st.sampled_from([0, 1, 2, 1000]), st.floats(1, 3), st.integers(1, 2))
def test_exposed_skew_is_part_of_exposed_communication(device, cap, factor, groups):
    source = workload(device=device, iterations=3, jitter=0.3, buffers=1)
    given = options(caps=BucketCaps(bucket_cap_mb=cap), stragglers={1: factor}, process_groups=groups)
    summary = summarise(simulate(source, place(ranks=3), given))
    assert -1e-12 <= summary.exposed_skew_s <= summary.exposed_comm_s + 1e-12
