"""What a notebook shows for an object: short, with the numbers of its document, and no name of a file run as HTML."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import (
    BucketCaps,
    Options,
    Prediction,
    compare,
    load_topology,
    load_workload,
    plan,
    predict,
    sweep,
    validate,
)
from ddpsim.common.markup import SCREEN
from ddpsim.common.tables.cells import format_band
from ddpsim.common.units import format_time
from ddpsim.planning.rows import PlanReport
from ddpsim.simulation.jobs.pipeline import parse_pipeline
from tests import pages

WORKLOAD, MACHINE = load_workload("mlp"), load_topology("p3.16xlarge")


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict(WORKLOAD, MACHINE, nodes=2)


def test_a_prediction_shows_its_step_and_what_is_most_in_doubt(prediction: Prediction) -> None:
    card = prediction._repr_html_()
    text = pages.parse(card).text
    assert text.startswith("mlp on 2 nodes of p3.16xlarge")
    times = (format_time(seconds) for seconds in (prediction.iteration_s, prediction.low_s, prediction.high_s))
    assert "{} ({} to {})".format(*times) in text
    assert prediction.doubts[0].name in text
    assert len(card) < 2000


@pytest.mark.parametrize("sync", ["last", "every"])
def test_what_is_shown_of_accumulated_gradients_is_the_step_s(sync: str) -> None:
    """Python speaks of the optimizer's step first; of a micro-batch's time it says whose it is."""
    options = Options(accumulate=8, sync=sync)
    found = predict(WORKLOAD, MACHINE, nodes=2, options=options)
    step, low, high = found.step_s
    of_it = f"{step * 1e3:.4g} ms a step (8 micro-batches of {found.iteration_s * 1e3:.4g} ms)"
    report = plan(WORKLOAD, [MACHINE], nodes=[2], options=options)
    compared = compare(["mlp"], ["p3.16xlarge"], nodes=[2], options=options)
    assert of_it in repr(found)
    for each in (report, report.best, compared, compared.best):
        assert "micro-batches of" in repr(each)
    text = pages.parse(found._repr_html_()).text
    assert "{} ({} to {})".format(*map(format_time, found.step_s)) in text
    assert f"{format_time(8 * found.summary.exposed_comm_s)} a step" in text
    assert f"{format_time(found.iteration_s)}, 8 a step" in text
    for page in (report._repr_html_(), compared._repr_html_()):
        (row,) = pages.table(pages.parse(page))
        assert float(row["step ms"].split()[0]) == pytest.approx(8 * float(row["micro-batch ms"].split()[0]), rel=0.01)
    for record in (found.records()[0], report.records()[0], compared.records()[0]):
        assert record["step_s"] == pytest.approx(8 * float(str(record["iteration_s"])))
        assert record["step_low_s"] <= record["step_s"] <= record["step_high_s"]
        parts = found.summary.parts
        assert sum(record[f"step_{part}"] for part in parts) == pytest.approx(record["step_s"])
        for part in parts:
            assert record[f"step_{part}"] == pytest.approx(8 * float(str(record[part])))
    assert (low, high) != (step, step)


def test_a_pipeline_s_micro_batches_are_said() -> None:
    options = Options(pipeline=parse_pipeline("1f1b:2,micro-batches=4", "pipeline"))
    found = predict("gpt2-small", "dgx-1v", options=options, band=False)
    assert f"{found.iteration_s * 1e3:.4g} ms a step (4 micro-batches in a pipeline)" in repr(found)
    assert found.records()[0]["step_s"] == found.iteration_s


def test_tables_of_a_prediction_and_a_validation_have_all_writers(prediction: Prediction) -> None:
    result = validate(prediction.document(), predict(WORKLOAD, MACHINE, nodes=2, band=False).trace)
    tables = {**prediction.tables(), **result.tables()}
    assert {"Parts of the step", "Buckets", "Predicted and measured", "Terms"} <= tables.keys()
    for title, table in tables.items():
        assert [list(row.values()) for row in pages.table(pages.parse(table.html()))] == table.document()["rows"], title
        assert len(table.markdown().splitlines()) == len(table.text().splitlines()) + 1
    parts = prediction.tables()["Parts of the step"].rows
    whole_s = sum(float(row[1] or 0) for row in parts if not str(row[0]).startswith("  ")) / 1e3
    assert whole_s == pytest.approx(prediction.iteration_s, abs=1e-4)


def test_a_name_is_shown_as_it_is(prediction: Prediction) -> None:
    named = replace(
        prediction, run=replace(prediction.run, workload=replace(WORKLOAD, name="<script>alert(1)</script>"))
    )
    root = pages.parse(named._repr_html_())
    assert not root.all("script")
    assert "<script>" in root.text


def test_a_plan_shows_a_row_a_machine_and_says_how_many_are_left() -> None:
    report = plan(WORKLOAD, [MACHINE], nodes=[1, 2])
    rows = pages.table(pages.parse(report._repr_html_()))
    assert [(row["machine"], row["nodes"]) for row in rows] == [("p3.16xlarge", "1"), ("p3.16xlarge", "2")]
    for shown, row in zip(rows, report.rows, strict=True):
        assert shown["paste"] == row.advice
        assert shown["step ms"] == format_band(row.chosen.step_s, 1e3)
    many = pages.parse(PlanReport(report.rows * SCREEN)._repr_html_())
    assert len(pages.table(many)) == SCREEN
    assert f"and {SCREEN} more" in many.text


def test_a_comparison_shows_what_binds() -> None:
    found = compare(["mlp"], ["p3.16xlarge"], nodes=[1, 2])
    rows = pages.table(pages.parse(found._repr_html_()))
    assert [row["link"] for row in rows] == [row.bound.link for row in found.rows]


def test_a_validation_shows_its_errors(prediction: Prediction) -> None:
    result = validate(prediction.document(), predict(WORKLOAD, MACHINE, nodes=2, band=False).trace)
    text = pages.parse(result._repr_html_()).text
    assert "+0.0 %" in text
    assert f"{format_time(prediction.iteration_s)} predicted" in text


def test_a_sweep_shows_what_is_to_come() -> None:
    found = sweep(WORKLOAD, MACHINE, nodes=[1, 2], caps=[BucketCaps()])
    assert "2 predictions to come" in pages.parse(found._repr_html_()).text
    next(found)
    assert "1 prediction to come" in pages.parse(found._repr_html_()).text
