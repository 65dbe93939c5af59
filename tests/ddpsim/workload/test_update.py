"""The optimizer of an estimated workload, named where it is predicted instead of where it is estimated."""

from dataclasses import replace

import pytest

from ddpsim import InputError, Options, load_topology, load_workload
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.workload.estimate import EstimateOptions, Operator, estimate
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.optimizers import optimizer_named
from ddpsim.workload.replayed import clipping_share, with_optimizer
from tests.ddpsim.simulation.builders import ALIKE
from tests.ddpsim.workload.test_estimate import shape_of

NAME = "gpt2-small@a100-amp-b8"
SHAPE = shape_of([Operator("gemm", 1e9, 0, gradients=(0, 1))])
DGX = load_topology("dgx-a100")


@pytest.mark.parametrize("clipping", [False, True])
@pytest.mark.parametrize("name", ["adamw-fused", "adamw", "sgd"])
def test_what_is_named_in_a_prediction_is_what_is_named_in_an_estimate(name, clipping):
    gpu = gpu_named("A100").with_fitted()
    there = estimate(SHAPE, gpu, "fp32", EstimateOptions(optimizer=optimizer_named(name, clipping=clipping)))
    here = with_optimizer(estimate(SHAPE, gpu, "fp32"), name, clipping=clipping)
    assert here.optimizer.device_s == pytest.approx(there.optimizer.device_s, abs=1e-9)
    assert here.optimizer.host_s == pytest.approx(there.optimizer.host_s, abs=1e-9)
    assert (here.optimizer_kind, here.provenance["optimizer"]) == (there.optimizer_kind, there.provenance["optimizer"])
    assert with_optimizer(here, name, clipping=clipping) is here


def test_a_prediction_carries_the_optimizer_and_tells_clipping_apart():
    workload = load_workload(NAME)
    fused, clipped = (
        predict(
            Job(workload, DGX, options=Options(optimizer="adamw-fused", clip_gradients=clip), calibration=ALIKE),
            band=False,
        )
        for clip in (False, True)
    )
    # Seven passes over the parameters, and three more to clip, at the same bandwidth.
    assert clipped.summary.optimizer_s / fused.summary.optimizer_s == pytest.approx(10 / 7, rel=1e-3)
    assert clipped.document()["clipping_s"] == pytest.approx(clipped.summary.optimizer_s * 3 / 10, rel=1e-3)
    assert (fused.clipping_s, fused.memory.optimizer_bytes) == (0.0, 2 * workload.gradient_bytes)
    assert clipped.local_s - fused.local_s == pytest.approx(clipped.clipping_s, rel=1e-2)


def test_an_optimizer_takes_its_time_once_a_step_and_clipping_with_it():
    given = Options(optimizer="adamw-fused", clip_gradients=True)
    once, accumulated = (
        predict(Job(load_workload(NAME), DGX, options=replace(given, accumulate=n)), band=False) for n in (1, 4)
    )
    assert accumulated.clipping_s * 4 == pytest.approx(once.clipping_s, rel=1e-3)


def test_clipping_alone_is_of_the_steps_own_optimizer():
    workload = replace(load_workload(NAME), optimizer_kind="adamw-foreach")
    assert with_optimizer(workload, None, clipping=True).optimizer_kind == "adamw-foreach+clip"
    assert clipping_share(replace(workload, estimated=False)) is None
    with pytest.raises(InputError, match=r"the optimizer of .* is not known"):
        with_optimizer(replace(workload, optimizer_kind=None), None, clipping=True)


def test_recorded_steps_keep_their_optimizer():
    recorded = replace(load_workload(NAME), estimated=False)
    with pytest.raises(InputError, match=r"optimizer: .* was recorded, its optimizer with it"):
        with_optimizer(recorded, "sgd", clipping=False)
    with pytest.raises(InputError, match=r"clip_gradients: .* was recorded"):
        with_optimizer(recorded, None, clipping=True)
    with pytest.raises(InputError, match="memory bandwidth of Unheard"):
        with_optimizer(replace(load_workload(NAME), device="Unheard"), "sgd", clipping=False)
