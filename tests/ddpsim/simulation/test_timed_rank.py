"""Timed layers: gradients come at their times, and DDP's own work hides in between where it fits."""

from itertools import pairwise
from statistics import median

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives
from ddpsim.prediction.predict import predict
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate, simulate_local
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import workload

LAB = load_topology("lab-flat")


def gradients(trace):
    record = trace.of_rank(0)[0]
    backward_s = record.start_s + record.buffer_broadcast_s + record.forward_s
    return {gradient.parameter: gradient.ready_s - backward_s for gradient in record.gradients}


@given(
    scale=st.floats(0.5, 4), host_share=st.floats(0.1, 2), straggler=st.floats(1, 2), synchronises=st.booleans()
)  # fmt: skip
def test_alone_it_takes_the_longer_clock_of_each_phase(scale, host_share, straggler, synchronises):
    source = workload(device="V100", host_share=host_share, synchronises=("after_forward",) if synchronises else ())
    alone = simulate_local(single_clock(source), Options(scale_compute=scale * straggler))
    assert median(it.iteration_s for it in alone) == pytest.approx(0.12 * max(1, host_share) * scale * straggler)


def test_gradients_come_at_their_times_in_spite_of_hooks_and_copies():
    source = single_clock(workload(device="V100", buffers=2))
    trace = simulate(source, LAB.place(), Options())
    record, costs = trace.of_rank(0)[0], Costs.of("gloo", None)
    assert trace.backend == "gloo"
    assert record.forward_s == pytest.approx(0.03)
    assert record.backward_compute_s + 8 * costs.hook_s < 0.08
    for parameter, ready_s in gradients(trace).items():
        late_s = ready_s - source.gradient_ready_s[0, parameter]
        assert late_s == pytest.approx(costs.forward_s)


def test_hooks_that_outlast_the_time_between_gradients_make_them_late():
    source, costs = single_clock(workload(device="V100", backward=1e-6, size=10)), Costs.of("gloo", None)
    ready = sorted(gradients(simulate(source, LAB.place(), Options(caps=BucketCaps(bucket_cap_mb=1000)))).values())
    steps = [b - a for a, b in pairwise(ready)]
    assert min(steps) >= costs.hook_s


def test_an_exposed_last_bucket_is_added_to_the_backward():
    source, caps = workload(device="V100"), BucketCaps(bucket_cap_mb=1000)
    wire_s = Collectives(simpy.Environment(), LAB.place(), backend="gloo", calibration=None).estimate_s(
        source.gradient_bytes
    )
    costs = Costs.of("gloo", None)
    prediction = predict(Job(source, LAB, options=Options(caps=caps)))
    copied_s = source.gradient_bytes / costs.copy_Bps
    last = costs.hook_s + source.parameters[0].size_bytes / costs.copy_Bps + costs.launch_s
    expected = 0.12 + costs.forward_s + last + wire_s + costs.finish_s + copied_s
    assert prediction.iteration_s == pytest.approx(expected, rel=1e-6)
    assert prediction.local_s == pytest.approx(0.12)


def test_a_gpus_workload_on_plain_hosts_is_timed_and_a_processors_is_not():
    assert predict(Job(workload(device="V100"), LAB)).document()["compute_device"] == "timed V100"
    assert predict(Job(workload(device="cpu"), LAB)).document()["compute_device"] == "cpu"
    assert (
        predict(Job(workload(device="V100"), load_topology("dgx-1v"), options=Options(backend="gloo"))).document()[
            "compute_device"
        ]
        == "V100"
    )


@pytest.mark.parametrize("device", ["V100", "cpu"])
def test_the_optimizer_runs_once_a_cycle_of_accumulated_gradients(device):
    source = workload(device=device)
    prediction = predict(Job(source, LAB, options=Options(accumulate=4, comm="noop", backend="gloo")))
    # Layers that sleep leave the time between gradients to additions: only the last one's delays anything.
    last_bytes = source.parameters[0].size_bytes if device == "V100" else source.gradient_bytes
    added_s = last_bytes / Costs.of("gloo", None).copy_Bps
    assert prediction.local_s == pytest.approx(0.03 + 0.08 + (0.01 + 3 * added_s) / 4)
    parts = [round(it.optimizer_s, 9) for it in prediction.trace.of_rank(0)]
    assert parts == [0.0, 0.0, 0.0, 0.01] * (len(parts) // 4)


def test_processors_of_one_model_differ_and_layers_that_sleep_do_not():
    priors = Calibration.priors("gloo")
    spread = priors.with_values({"gloo.ddp.pace_spread": 0.1}, source="test")
    for device, slower in (("V100", 1.0), ("cpu", 1.1106)):
        alike, apart = (
            predict(Job(workload(device=device), LAB, calibration=calibration), band=False).iteration_s
            for calibration in (priors, spread)
        )
        assert apart - alike == pytest.approx(0.12 * (slower - 1), rel=0.01)
