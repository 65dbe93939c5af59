"""Machines with a measured step beside machines with an estimate: one share of the roofline, and a word on it."""

from __future__ import annotations

import pytest

from ddpsim import compare, load_topology, load_workload, plan, predict
from ddpsim.cli.compare import text
from ddpsim.planning.ranking import describe_borrowed
from ddpsim.prediction.doubts.causes import pace_of
from ddpsim.workload import Workload
from ddpsim.workload.anchors import Anchor
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.files import with_operators
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.on_gpu import estimate_on_gpu
from ddpsim.workload.optimizers import OPTIMIZERS

SLOWER = 1.6


def on(gpu: str, step_s: float | None = None) -> Workload:
    """ResNet-50 in tf32, estimated by the roofline alone or scaled to a step."""
    source = with_operators(load_workload("resnet50"))
    assert source.operators is not None
    anchors = [] if step_s is None else [Anchor("step", step_s)]
    options = EstimateOptions(anchors=anchors, optimizer=OPTIMIZERS["momentum"])
    return estimate(ModelShape.of(source, source.operators), gpu_named(gpu).with_fitted(), "tf32", options)


def device_s(workload: Workload) -> float:
    return float(workload.forward.device_s[0] + workload.backward.device_s[0])


@pytest.fixture(scope="module")
def given() -> Workload:
    """A step on an A100 that takes longer than its roofline."""
    alone = on("A100")
    return on("A100", device_s(alone) * SLOWER + float(alone.optimizer.device_s[0]))


def test_another_gpu_takes_the_share_of_its_roofline_that_the_measured_step_takes(given: Workload) -> None:
    elsewhere = estimate_on_gpu(given, gpu_named("H100"))
    assert device_s(elsewhere) == pytest.approx(SLOWER * device_s(on("H100")), rel=1e-6)
    assert elsewhere.optimizer == on("H100").optimizer
    assert [pace_of(each) for each in (given, elsewhere, on("H100"))] == ["measured", "carried", "counted"]


def test_another_precision_takes_none_of_it(given: Workload) -> None:
    elsewhere = estimate_on_gpu(given, gpu_named("H100"), precision="amp")
    assert pace_of(elsewhere) == "counted"


def test_shares_of_the_shipped_workloads_are_of_their_own_gpu() -> None:
    source = with_operators(load_workload("resnet50@v100-fp32-b32"))
    assert source.provenance["scaled_to"] is not None
    assert pace_of(estimate_on_gpu(source, gpu_named("A100"))) == "counted"


def test_a_machine_without_a_measured_step_is_ranked_with_a_doubt_and_a_word(given: Workload) -> None:
    found = compare([given], ["dgx-a100", "dgx-h100"])
    measured, carried = (row.prediction for row in found.rows)
    assert measured.high_s / measured.low_s < carried.high_s / carried.low_s
    said = "dgx-h100: ranked as if as near to its roofline as the step measured on A100"
    assert said in text(found, 0.8)
    assert said in " ".join(describe_borrowed(row.chosen for row in plan(given, [load_topology("dgx-h100")]).rows))
    assert not list(describe_borrowed([predict(given, load_topology("dgx-a100"), band=False)]))


def test_a_gpu_of_amd_is_ranked_with_what_the_one_published_step_took() -> None:
    found = compare(["bert-large@h100-amp-b8"], ["dgx-h100", "mi300x-8"])
    [said] = describe_borrowed(row.prediction for row in found.rows)
    assert said.startswith("mi300x-8: ranked as if it reached the share of peak of NVIDIA's GPUs")
    assert "2.9 times as long" in said
    assert said in text(found, 0.8)
