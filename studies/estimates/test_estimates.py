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
