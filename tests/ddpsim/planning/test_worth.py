"""One rule for what is advised, what is worth a trial, and what a list of caps must gain."""

from __future__ import annotations

import pytest

from ddpsim import load_topology, plan
from ddpsim.bucketing import Parameter
from ddpsim.planning.best_buckets import LEAST_BUCKET
from ddpsim.planning.rows import PlanRow
from ddpsim.planning.worth import LIST_MORE, WORTH_IT, Trial, decide, is_advised
from ddpsim.prediction.prediction import Band


@pytest.mark.parametrize(
    ("gain", "advised", "tried"),
    [
        ((0.035, 0.001, 0.06), True, False),
        ((0.035, -0.013, 0.06), False, True),
        ((0.035, 0.0, 0.06), False, True),
        ((0.01, 0.005, 0.02), False, True),
        ((0.009, 0.005, 0.02), False, False),
        ((-0.1, -0.2, 0.3), False, False),
    ],
)
def test_a_change_is_advised_whose_whole_band_is_above_zero_and_whose_middle_is_above_one_percent(
    gain: Band, advised: bool, tried: bool
) -> None:
    of = ("it", gain)
    assert is_advised(gain) == advised
    assert decide([of]) == (of if advised else None, of if tried else None)


def test_a_trial_is_of_what_is_expected_to_gain_more_than_what_is_advised() -> None:
    sure, bold, less = ("sure", (0.02, 0.01, 0.03)), ("bold", (0.05, -0.01, 0.09)), ("less", (0.015, -0.01, 0.09))
    assert decide([less, sure]) == (sure, None)
    assert decide([less, sure, bold]) == (sure, bold)
    assert decide([less, bold]) == (None, bold)
    assert decide([]) == (None, None)


def test_a_trial_is_one_sentence_with_its_line_and_a_band_from_low_to_high() -> None:
    trial = Trial("DistributedDataParallel(model, bucket_cap_mb=10)", 0.035, -0.013, 0.06)
    assert str(trial) == "worth a try: bucket_cap_mb=10, 3.5 % shorter step expected (-1.3 to 6.0)"
    named = Trial("# fully_shard", 0.035, -0.013, 0.06, name="fsdp2")
    assert str(named) == "worth a try: fsdp2, 3.5 % shorter step expected (-1.3 to 6.0)"


ROWS = [("bert-large", "p3.16xlarge", 4), ("bert-large", "p3.16xlarge", 8), ("resnet50", "p3.16xlarge", 4)]


@pytest.fixture(scope="module", params=ROWS, ids=str)
def row(request: pytest.FixtureRequest) -> PlanRow:
    name, machine, nodes = request.param
    return plan(name, [load_topology(machine)], nodes=[nodes]).rows[0]


def test_a_searched_list_gains_two_percent_more_than_any_single_cap_and_has_no_small_bucket(row: PlanRow) -> None:
    parameters = row.default.workload.parameters
    for line, step_s in ((row.best.plan.torch, row.best.iteration_s), *((o.torch, o.iteration_s) for o in row.others)):
        if "bucket_cap_mb_list" in line:
            single_s = min(row.default.iteration_s, *(seconds for _, seconds in row.sweep))
            assert single_s - step_s >= LIST_MORE * row.default.iteration_s
            caps = [float(cap) for cap in line.partition("=[")[2].partition("]")[0].split(",")]
            assert min(caps) >= 1
            assert min(_sizes(parameters, row.best.plan.groups())) >= LEAST_BUCKET


def _sizes(parameters: tuple[Parameter, ...], groups: list[tuple[int, ...]]) -> list[int]:
    return [sum(parameters[index].size_bytes for index in group) for group in groups]


def test_the_gain_is_that_of_what_is_advised_wherever_it_is_read(row: PlanRow) -> None:
    document = row.document()
    assert row.gain == document["gain"] == row.describe()["gain"]
    assert row.gain == 1 - row.chosen.iteration_s / row.default.iteration_s
    expected = row.best_gain[0] >= WORTH_IT and row.keep_default
    assert (row.trial is not None) == expected
