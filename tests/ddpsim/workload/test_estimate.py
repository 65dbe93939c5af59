from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import UnknownNameError, WorkloadError
from ddpsim.simulation.engine import simulate_local
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload.anchors import Anchor
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.gpus import GPUS, gpu_named
from ddpsim.workload.operators import Activations, Operator
from ddpsim.workload.optimizers import ADDITION, optimizer_named
from ddpsim.workload.timeline import ACCUMULATE_S, BACKWARD_LAUNCH_S, FORWARD_LAUNCH_S

V100 = GPUS["V100"]


FORWARD = (Operator("gemm", 1e9, 0),)


def shape_of(backward, forward=FORWARD):
    count = sum(len(operator.gradients) for operator in backward)
    parameters = tuple(Parameter(f"p{i}", (1000,)) for i in range(count))
    return ModelShape("net", 4, "sample", parameters, (), tuple(forward), tuple(backward))


def test_a_roofline_takes_the_longer_of_arithmetic_and_traffic():
    # 15.7 TFLOP/s at 0.85 and 900 GB/s at 0.78.
    flops, traffic = 15.7e12 * 0.85 * 2e-3, 900e9 * 0.78 * 3e-3
    shape = shape_of([Operator("gemm", flops, traffic / 30, gradients=(0,)), Operator("gemm", flops, traffic)])
    workload = estimate(shape, V100, "fp32")
    assert workload.backward.device_s == pytest.approx([2e-3 + 3e-3])
    assert workload.gradient_ready_s == pytest.approx(np.array([[2e-3]]))
    assert workload.gradient_hook_s == pytest.approx(np.array([[BACKWARD_LAUNCH_S + ACCUMULATE_S]]))
    assert workload.estimated
    # 2 ms are bound by arithmetic, 3 ms by traffic; forward's 1 GFLOP takes 75 us.
    assert workload.arithmetic_share == pytest.approx((2e-3 + 75e-6) / (5e-3 + 75e-6), abs=0.001)


def test_a_tiny_operator_takes_a_kernels_minimum_and_waits_for_the_host():
    shape = shape_of([Operator("memory", 0, 4, gradients=(i,)) for i in range(50)], [Operator("memory", 0, 4)])
    workload = estimate(shape, V100, "fp32")
    # Host-bound: 42 us from hook to hook, 4 us of work in each; the device waits for the host.
    assert workload.backward.device_s == pytest.approx([50 * 4e-6])
    assert np.diff(workload.gradient_ready_s[0]) == pytest.approx(np.full(49, 42e-6))
    assert workload.gradient_ready_s[0, -1] == pytest.approx(49 * 42e-6 + 4e-6)


gradient_sets = st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e9)), min_size=1, max_size=12)


@given(gradient_sets, st.sampled_from(sorted(GPUS)))
def test_gradients_are_complete_in_order_after_their_hooks(operators, gpu):
    shape = shape_of([Operator("gemm", f, t, gradients=(i,)) for i, (f, t) in enumerate(operators)])
    workload = estimate(shape, GPUS[gpu], "fp32")
    hooks, ready = workload.gradient_hook_s[0], workload.gradient_ready_s[0]
    assert (np.diff(hooks) > 0).all()
    assert (np.diff(ready) >= 0).all()
    assert hooks[-1] <= workload.backward.host_s[0] + 1e-9
    # Busy time is never more than the time that passed.
    assert workload.backward.device_s[0] <= ready[-1] + 1e-8 * len(operators)


@pytest.mark.parametrize(
    ("phase", "measure"),
    [
        ("step", lambda w: w.forward.device_s + w.backward.device_s + w.optimizer.device_s),
        ("backward", lambda w: w.backward.device_s),
    ],
)
def test_an_anchor_is_met_and_named(phase, measure):
    shape = shape_of([Operator("gemm", 1e12, 0, gradients=(0,)), Operator("memory", 0, 1e9)])
    workload = estimate(
        shape, V100, "fp32", EstimateOptions(anchors=[Anchor(phase, 0.25, ("after_optimizer",), "a table")])
    )
    assert measure(workload) == pytest.approx([0.25], abs=1e-8)
    assert workload.provenance["scaled_to"] == "a table"
    assert workload.synchronises == ("after_optimizer",)


@pytest.mark.parametrize("name", [None, "adamw-fused"])
def test_a_measured_step_of_several_micro_batches_is_met_by_all_of_them(name):
    shape = shape_of([Operator("memory", 0, 1e9, gradients=(0, 1))])
    optimizer = None if name is None else optimizer_named(name)

    def known(anchor, accumulate=4):
        return EstimateOptions(anchors=[anchor], optimizer=optimizer, accumulate=accumulate)

    made = estimate(shape, V100, "fp32", known(Anchor("step", 0.1)))
    added_s = 3 * sum(ADDITION.works_s(made.parameters, V100.achieved_Bps, V100.achieved.kernel_s))
    step_s = 4 * (made.forward.device_s + made.backward.device_s) + made.optimizer.device_s + added_s
    assert step_s == pytest.approx(0.1, rel=1e-6)
    told = simulate_local(made, Options(accumulate=4))
    assert sum(it.iteration_s for it in told[:4]) == pytest.approx(0.1, rel=1e-3)
    backward = estimate(shape, V100, "fp32", known(Anchor("backward", 0.02)))
    assert backward.backward.device_s == pytest.approx(0.02)
    with pytest.raises(WorkloadError, match=r"1 ms is below the roofline's floor of .* for the step"):
        estimate(shape, V100, "fp32", known(Anchor("step", 1e-3), 40))
    with pytest.raises(WorkloadError, match=r"leaves nothing beside 2 s of additions"):
        Anchor("step", 1.0).scale_to_step(4, added_s=2.0)


def test_half_precision_halves_traffic_except_where_autocast_keeps_fp32():
    operators = [Operator("memory", 0, 1e9), Operator("memory", 0, 1e9, fp32=True, gradients=(0,))]
    a100, shape = GPUS["A100"], shape_of(operators)
    full, amp = (estimate(shape, a100, precision).backward.device_s[0] for precision in ("tf32", "amp"))
    assert amp / full == pytest.approx(0.75, rel=1e-4)
    assert {p.dtype for p in estimate(shape, a100, "amp").parameters} == {"float32"}
    assert {p.dtype for p in estimate(shape, a100, "bf16").parameters} == {"bfloat16"}


def test_a_parameter_without_a_gradient_has_no_times():
    shape = shape_of([Operator("gemm", 1, 1, gradients=(0,))])
    workload = estimate(replace(shape, parameters=(*shape.parameters, Parameter("p9", (1,)))), V100, "fp32")
    assert np.isnan(workload.gradient_hook_s[0]).tolist() == [False, True]
    assert np.isnan(workload.gradient_ready_s[0]).tolist() == [False, True]


def test_parameters_keep_their_type_but_bf16_narrows_float32():
    shape = shape_of([Operator("gemm", 1, 1, gradients=(0, 1))])
    shape = replace(shape, parameters=(Parameter("a", (1,)), Parameter("b", (1,), "float64")))
    for precision, expected in (("tf32", ["float32", "float64"]), ("bf16", ["bfloat16", "float64"])):
        assert [p.dtype for p in estimate(shape, GPUS["A100"], precision).parameters] == expected


def test_forward_needs_a_parameter_when_its_first_operator_is_launched():
    operators = [Operator("memory", 0, 900e9 * 0.78 * 1e-3) for _ in range(3)]  # 1 ms each
    shape = shape_of([Operator("memory", 0, 4, gradients=(0, 1, 2))], operators)
    assert estimate(shape, V100, "fp32").forward_use_s is None
    use = estimate(replace(shape, forward_use=(2, None, 0)), V100, "fp32").forward_use_s
    assert use.host_s == pytest.approx([2 * FORWARD_LAUNCH_S, np.nan, 0.0], nan_ok=True)
    assert use.device_s == pytest.approx([2e-3, np.nan, 0.0], nan_ok=True)


def test_sixteen_bits_halve_the_activations_that_autocast_narrows():
    shape = replace(shape_of([Operator("gemm", 1, 1, gradients=(0,))]), activations=Activations(1000, 300))
    kept = {precision: estimate(shape, GPUS["A100"], precision).activations_bytes for precision in ("fp32", "amp")}
    assert kept == {"fp32": 1300, "amp": 800}


def test_what_is_not_known_is_refused():
    shape = shape_of([Operator("gemm", 1, 1, gradients=(0,))])
    with pytest.raises(WorkloadError, match="V100 has no figures for precision 'bf16'; use one of fp32"):
        estimate(shape, V100, "bf16")
    with pytest.raises(UnknownNameError, match="unknown GPU 'V1000'; did you mean V100"):
        gpu_named("V1000")
