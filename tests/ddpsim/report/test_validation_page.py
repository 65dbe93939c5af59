from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ddpsim import Options, load_topology, load_workload, predict, validate
from ddpsim.report import render, validation_report
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import Trace
from tests import pages
from tests.browser import Page

JOB = {"gpus_per_node": 2, "options": Options(backend="gloo")}


@pytest.fixture(scope="module")
def prediction() -> dict[str, object]:
    return predict(load_workload("resnet50"), load_topology("loopback"), **JOB).document()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measured() -> Trace:
    """The trace of the same job on a slower host, in the place of a measurement."""
    slower = JOB | {"options": Options(backend="gloo", scale_compute=1.07)}
    return predict(load_workload("resnet50"), load_topology("loopback"), **slower, band=False).trace  # type: ignore[arg-type]


def page(prediction: dict[str, object], measured: Trace) -> str:
    return render(validation_report(validate(prediction, measured), prediction, measured))


def test_the_verdict_says_the_error_and_where_it_is(prediction: dict[str, object], measured: Trace) -> None:
    first, second = pages.data(page(prediction, measured))["verdict"]
    result = validate(prediction, measured)
    assert result.iterations.error is not None
    assert f"an error of {100 * result.iterations.error:+.1f} %" in first
    assert "inside the band" in first
    assert f"{result.largest_term.name} errs most" in second


def test_a_run_outside_the_band_is_told_apart(prediction: dict[str, object], measured: Trace) -> None:
    sure = {**prediction, "iteration_high_s": prediction["iteration_s"]}
    assert "outside the band" in pages.data(page(sure, measured))["verdict"][0]
    without = {key: value for key, value in prediction.items() if not key.endswith(("_low_s", "_high_s"))}
    assert " band" not in pages.data(page(without, measured))["verdict"][0]


def test_tables_hold_the_errors_of_the_validation(prediction: dict[str, object], measured: Trace) -> None:
    parts, result = pages.sections(page(prediction, measured)), validate(prediction, measured)
    compared = pages.table(parts["Predicted and measured"])
    assert compared[0]["measured ms"] == f"{result.iterations.measured_s * 1e3:.2f}"
    assert len(compared) == 2
    trivial = {row["trivial predictor"]: row["error"] for row in pages.table(parts["Trivial predictors"])}
    assert trivial["one process"] == f"{100 * (result.baselines['one_process']['error'] or 0):+.1f} %"
    terms = {row["term"]: row["of the step"] for row in pages.table(parts["Terms"])}
    assert terms["forward"] == f"{100 * result.terms[0].share_of_step:+.1f} %"
    buckets = pages.table(parts["Errors of buckets"])
    expected = [f"{100 * bucket.errors['finished_s']:+.1f} %" for bucket in result.buckets]
    assert [row["finished error"] for row in buckets] == expected


def test_both_steps_stand_on_one_timeline(prediction: dict[str, object], measured: Trace) -> None:
    found = page(prediction, measured)
    timeline = next(part for part in pages.data(found)["sections"] if part["kind"] == "timeline")
    run, predicted = timeline["choices"][0]["steps"]
    assert (run["label"], predicted["label"]) == ("measured", "predicted")
    step = summarise(measured).iteration_s
    nearest = min((it.iteration_s for it in measured.of_rank(0)), key=lambda s: abs(s - step))
    assert run["iteration_us"] == pytest.approx(nearest * 1e6, abs=0.2)
    assert predicted["iteration_us"] == pytest.approx(prediction["iteration_s"] * 1e6, abs=0.1)  # type: ignore[operator]


def test_a_run_without_buckets_has_a_report_too(prediction: dict[str, object], measured: Trace) -> None:
    bare = replace(measured, iterations=[replace(it, buckets=()) for it in measured.iterations])
    alone = {**prediction, "buckets": []}
    assert "Errors of buckets" not in pages.sections(page(alone, bare))


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_at_both_widths(
    browser: Page, prediction: dict[str, object], measured: Trace, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "validation.html"
    path.write_text(page(prediction, measured))
    browser.open(path, width)
    assert browser.complaints() == []
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert not browser.run("document.querySelector('.choice').checkVisibility()")


def test_the_timeline_has_what_the_prediction_says_the_step_waits_for(measured: Trace) -> None:
    found = predict(load_workload("resnet50"), load_topology("loopback"), **JOB, band=False)  # type: ignore[arg-type]
    told = {**found.document(), **found.critical_path.entries()}
    result = validate(told, measured)
    assert result.path == found.critical_path
    entries = found.critical_path.entries()
    assert {key: result.document()[key] for key in entries} == entries
    [timeline] = [each for each in pages.data(page(told, measured))["sections"] if each["kind"] == "timeline"]
    drawn = timeline["choices"][0]["steps"][1]["path"]
    assert [tuple(each[:2]) for each in drawn] == [(span.cause, span.stream) for span in found.critical_path.spans]
    assert all(before[3] == after[2] for before, after in pairwise(drawn))
    assert drawn[-1][3] == pytest.approx(found.iteration_s * 1e6, rel=1e-3)
