from dataclasses import replace

import numpy as np
import pytest

from ddpsim import Options, load_topology, load_workload
from ddpsim.common.errors import WorkloadError
from ddpsim.prediction.doubts.causes import pace_of
from ddpsim.prediction.models import Model
from ddpsim.prediction.named import predict as predict_named
from ddpsim.prediction.pace_from_row import MeasuredStep, anchor_to_row, scale_device_time
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.workload.anchors import Anchor
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.gpus import gpu_named

MACHINE = load_topology("p3.16xlarge")


def test_the_prediction_at_the_found_pace_is_the_measured_step():
    source = load_workload("resnet50")
    paced = anchor_to_row(source, MeasuredStep(0.24, MACHINE, nodes=2))
    assert predict(Job(paced, MACHINE, nodes=2), band=False).iteration_s == pytest.approx(0.24, rel=1e-3)
    assert paced.provenance["row_scale"] > 1.5
    assert "16 ranks" in paced.provenance["scaled_to"]


@pytest.mark.parametrize("name", ["resnet50", "bert-large@a100-tf32-b8", "bert-large@h100-amp-b8"])
def test_whoever_predicts_it_there_finds_the_measured_step(name):
    machine = load_topology("dgx-a100")
    paced = anchor_to_row(load_workload(name), MeasuredStep(0.1, machine, nodes=2))
    assert paced.device == "A100"
    assert predict_named(paced, machine, nodes=2, band=False).iteration_s == pytest.approx(0.1, rel=1e-3)


def test_a_pace_of_one_changes_nothing_and_a_named_optimizer_keeps_its_time():
    source = load_workload("bert-base")
    same = scale_device_time(source, 1.0)
    np.testing.assert_allclose(same.gradient_ready_s, source.gradient_ready_s, atol=2e-9)
    np.testing.assert_allclose(same.backward.device_s, source.backward.device_s, rtol=1e-6)
    named = replace(source, provenance={**source.provenance, "optimizer": "sgd"})
    assert scale_device_time(named, 2.0).optimizer == named.optimizer
    assert scale_device_time(source, 2.0).optimizer.device_s == pytest.approx(2 * source.optimizer.device_s)


def test_a_step_below_communication_alone_is_refused():
    with pytest.raises(WorkloadError, match=r"bert-large: no pace makes a step of 100 ms on p3.16xlarge: it takes"):
        anchor_to_row(load_workload("bert-large"), MeasuredStep(0.1, MACHINE, nodes=2))


def test_a_row_that_is_mostly_communication_leaves_the_pace_as_unsure_as_it_was():
    slow = load_topology("2x4a100-1nic")
    source = load_workload("bert-large@a100-amp-b8")
    taken = predict(Job(source, slow), band=False).iteration_s
    paced = anchor_to_row(source, MeasuredStep(1.05 * taken, slow))
    assert paced.provenance["row_floor_share"] > 0.5
    assert pace_of(paced) == pace_of(Model.of(source).on(slow)) == "counted"
    assert pace_of(anchor_to_row(load_workload("resnet50"), MeasuredStep(0.24, MACHINE, nodes=2))) == "measured"


def test_a_step_of_several_micro_batches_is_the_optimizers_in_an_estimate_and_in_a_row():
    """On one GPU without DDP's costs both are given the same time and have the same computation."""
    source = load_workload("resnet50")
    whole_s = 4 * 0.1
    paced = anchor_to_row(source, MeasuredStep(whole_s, MACHINE, gpus_per_node=1), Options(accumulate=4))
    step_s, *_ = predict(Job(paced, MACHINE, gpus_per_node=1, options=Options(accumulate=4)), band=False).step_s
    assert step_s == pytest.approx(whole_s, rel=1e-3)
    shape = ModelShape.of(source, source.operators)
    given = estimate(shape, gpu_named("V100"), "fp32", EstimateOptions(anchors=[Anchor("step", whole_s)], accumulate=4))
    compute_s, row_s = ((each.forward.device_s + each.backward.device_s)[0] for each in (given, paced))
    assert row_s == pytest.approx(compute_s, rel=0.05)


def test_a_bandwidth_that_nobody_gave_is_named():
    source = replace(load_workload("resnet50"), device="Voodoo")
    assert predict(Job(source, MACHINE), band=False).document()["provenance"]["assumed"] == {"nccl.ddp.copy_Bps": 3e11}
    figures = {"name": "Voodoo", "memory_bandwidth": "1792GB/s", "peaks": {"fp32": "126T"}}
    described = replace(source, provenance={**source.provenance, "gpu_figures": figures})
    assert "assumed" not in predict(Job(described, MACHINE), band=False).document()["provenance"]
    assert (
        predict(Job(described, MACHINE), band=False).iteration_s < predict(Job(source, MACHINE), band=False).iteration_s
    )
