from dataclasses import replace

import pytest

pytest.importorskip("torch")

from ddpsim.workload.achieved import FITTED
from studies.estimates.estimates import PAGE, _row, judge
from studies.estimates.estimates_fit import counted, fit, loss
from studies.estimates.one_gpu_steps import steps

EVERY = steps()


@pytest.mark.parametrize("step", [s for s in EVERY if s.source == "sandeep"], ids=lambda step: step.precision)
def test_the_page_says_what_the_estimator_does(step):
    assert _row(judge(step, EVERY)) in PAGE.read_text(encoding="utf-8")


def test_attention_that_was_not_one_kernel_is_counted_apart():
    """Scores and their softmax are written to memory: more operators than of one kernel, and more traffic."""
    step = next(each for each in EVERY if each.model == "bert-base-qa" and not each.fused_attention)
    apart, fused = (
        [operator for phase in counted(each).phases for operator, times in phase.items() for _ in range(times)]
        for each in (step, replace(step, fused_attention=True))
    )
    assert len(apart) > len(fused)
    assert sum(each.traffic_bytes for each in apart) > 1.2 * sum(each.traffic_bytes for each in fused)


def test_an_anchor_is_never_the_step_that_is_judged():
    for step in EVERY:
        judged = judge(step, EVERY) if step.source == "sandeep" else None
        if judged is not None:
            assert judged.anchor.gpu == step.gpu
            assert judged.anchor.seconds != step.seconds
            assert judged.origin.gpu != step.gpu


def test_the_shares_in_force_are_near_the_best_for_convolutions():
    rows = [counted(step) for step in EVERY if step.fitted and step.model == "resnet50" and step.source == "lambda"]
    assert loss(rows, FITTED) < 0.15
    assert loss(rows, fit(rows, FITTED)) <= loss(rows, FITTED) + 0.001
