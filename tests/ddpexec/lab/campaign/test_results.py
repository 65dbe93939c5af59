from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ddpexec.lab.campaign.report import errors_by_scheme, markdown, rankings
from ddpexec.lab.campaign.results import Result, summarise_results
from ddpexec.lab.campaign.stages import interpolate, measure_baselines
from ddpsim.trace.metrics import BucketSummary

TABLE = [(1 << 20, 0.010), (1 << 22, 0.040), (1 << 24, 0.160)]


def bucket(ready_s: float, size_bytes: int) -> BucketSummary:
    rest = dict.fromkeys(("launched_s", "started_s", "wire_s", "finished_s", "written_s", "skew_s"), 0.0)
    return BucketSummary(index=0, size_bytes=size_bytes, parameters=(0,), ready_s=ready_s, **rest)


def result(step_s: float, predicted_s: float, caps: str = "default", group: str = "g", **changes: object) -> Result:
    made = Result(
        name=f"{group}-{caps}",
        group=group,
        caps=caps,
        world_size=4,
        wire_over_backward=1.0,
        predicted_s=predicted_s,
        low_s=predicted_s * 0.98,
        high_s=predicted_s * 1.02,
        step_s=step_s,
        repeats_s=(step_s,),
        local_s=1.0,
        predicted_local_s=1.0,
        bucket_errors=(0.01, -0.03),
        baselines_s={"one_process": 1.0, "sum": 2.0},
        largest_term="bandwidth",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_interpolation_holds_the_rows_and_the_power_law_between_them() -> None:
    assert [interpolate(TABLE, size) for size, _ in TABLE] == pytest.approx([time for _, time in TABLE])
    assert interpolate(TABLE, 1 << 21) == pytest.approx(0.020)
    assert interpolate(TABLE, 1 << 26) == pytest.approx(0.640)
    assert interpolate(TABLE, 4) == 0.010


def test_trivial_predictors_by_hand() -> None:
    buckets = [bucket(0.5, 1 << 22), bucket(0.52, 1 << 24), bucket(0.9, 1 << 20)]
    said = measure_baselines(TABLE, buckets, local_s=1.0, optimizer_s=0.05)
    assert said == pytest.approx(
        {
            "one_process": 1.0,
            "max_of_compute_and_wire": 1.0,
            "sum_of_compute_and_wire": 1.21,
            "in_order_pipeline": 1.0,
        }
    )
    late = measure_baselines(TABLE, [bucket(0.9, 1 << 24), bucket(0.95, 1 << 22)], local_s=1.0, optimizer_s=0.05)
    assert late["in_order_pipeline"] == pytest.approx(0.9 + 0.16 + 0.04 + 0.05)
    every = measure_baselines(TABLE, [bucket(0.9, 1 << 24)], local_s=1.0, optimizer_s=0.05, sync_every=4)
    assert every["sum_of_compute_and_wire"] == pytest.approx(1.04)


def test_errors_are_signed_and_noise_is_half_the_range() -> None:
    one = result(1.25, 1.20, repeats_s=(1.20, 1.25, 1.30))
    assert one.error == pytest.approx(-0.04)
    assert one.overhead_error == pytest.approx(-0.2)
    assert one.baseline_error("sum") == pytest.approx(3.0)
    assert one.noise == pytest.approx(0.04)
    assert result(1.25, 1.2).noise is None
    assert result(0.99, 1.2).overhead_error is None


def test_a_result_survives_its_document() -> None:
    one = result(1.25, 1.20)
    assert Result.from_document(json.loads(json.dumps(one.document()))) == one
    measured = replace(one, local_source="measured", local_s=1.1)
    assert Result.from_document(json.loads(json.dumps(measured.document()))) == measured


def test_the_page_says_where_the_time_of_one_process_comes_from() -> None:
    kept, new = result(1.25, 1.20), result(1.3, 1.20, "cap1", local_source="measured")
    pages = [markdown("lab", summarise_results(each), each) for each in ([kept], [new], [kept, new])]
    assert "One process: one rank without DDP at its workload's pace, computed, not run.\n" in pages[0]
    assert "One process: measured, by steps without communication at the end of the runs.\n" in pages[1]
    assert "; of 1 of 2, marked c: one rank without DDP at its workload's pace, computed, not run.\n" in pages[2]
    assert "| g-default | 1000.00 c |" in pages[2]
    assert "| g-cap1 | 1000.00 |" in pages[2]


def test_choosing_a_cap_by_prediction_has_its_regret_and_gain() -> None:
    group = [result(2.0, 1.9), result(1.5, 1.45, "cap5"), result(1.52, 1.44, "cap1")]
    other = [result(1.10, 1.12, group="h"), result(1.08, 1.07, "cap5", "h"), result(1.2, 1.3, "cap1", "h")]
    said = summarise_results([*group, *other])
    assert said["cap_groups"] == 2
    assert said["regret_mean"] == pytest.approx((1.52 / 1.5 - 1) / 2)
    assert said["regret_worst"] == pytest.approx(1.52 / 1.5 - 1)
    assert said["regret_of_default_mean"] == pytest.approx((2.0 / 1.5 - 1 + 1.10 / 1.08 - 1) / 2)
    assert said["groups_worth_tuning"] == 1
    assert said["captured_share_mean"] == pytest.approx((2.0 - 1.52) / 0.5)
    assert said["best_single_cap"] == "cap5"
    assert said["best_single_cap_groups"] == 2
    assert said["regret_of_best_single_cap_mean"] == 0
    assert said["regret_mean_where_best_single_cap_ran"] == said["regret_mean"]


def test_the_best_single_cap_is_judged_where_it_ran() -> None:
    ran = [result(2.0, 1.9), result(1.5, 1.6, "cap5"), result(1.6, 1.4, "cap1")]
    other = [result(1.0, 1.0, group="h"), result(1.1, 1.2, "cap25", "h")]
    said = summarise_results([*ran, *other])
    assert (said["best_single_cap"], said["best_single_cap_groups"]) == ("cap5", 1)
    assert said["regret_mean_where_best_single_cap_ran"] == pytest.approx(1.6 / 1.5 - 1)
    assert said["captured_share_of_best_single_cap_mean"] == pytest.approx(1.0)
    third = [result(1.0, 1.0, group="i"), result(1.1, 1.2, "cap50", "i")]
    assert summarise_results([*ran, *other, *third])["best_single_cap"] is None


def test_measures_are_medians_of_absolute_errors() -> None:
    said = summarise_results([result(1.25, 1.20), result(1.25, 1.30, group="h"), result(1.25, 1.27, group="i")])
    assert said["step_error_median"] == pytest.approx(0.04)
    assert said["overhead_error_median"] == pytest.approx(0.2)
    assert said["baseline_overhead_error_median"] == pytest.approx({"one_process": 1.0, "sum": 3.0})
    assert said["best_baseline_overhead_error_median"] == pytest.approx(1.0)
    assert said["bucket_finish_error_median"] == pytest.approx(0.02)
    assert said["band_coverage"] == pytest.approx(1 / 3)
    assert said["noise_median"] is None


def test_the_page_has_a_row_a_configuration_and_says_what_is_unknown() -> None:
    results = [result(1.25, 1.20), result(1.3, 1.20, "cap1")]
    page = markdown("lab", summarise_results(results), results)
    assert "| g-default | 1000.00 | 1250.00 | 1200.00 | -4.00 % | -20.00 % | bandwidth |" in page
    assert "| noise of repeated runs, median half range | - |" in page
    assert markdown("none", summarise_results([]), []).count("\n") > 20


def test_errors_and_rankings_by_scheme_by_hand() -> None:
    kinds = {"ddp": (1.0, 1.1), "priority": (0.8, 0.85), "dear": (0.804, 0.8)}
    results = [
        result(step_s, predicted_s, group=f"{family}{scheme}", scheme=scheme, family=family)
        for family in ("a", "b")
        for scheme, (step_s, predicted_s) in kinds.items()
    ]
    errors = {each.scheme: each for each in errors_by_scheme(results)}
    assert errors["ddp"].median == pytest.approx(0.1)
    assert (errors["dear"].signed, errors["dear"].p95) == pytest.approx((0.8 / 0.804 - 1, 1 - 0.8 / 0.804))
    page = markdown("c", summarise_results(results), results)
    for ranking in rankings(results):
        assert (ranking.predicted, ranking.measured) == ("dear", "priority")
        assert ranking.regret == pytest.approx(0.804 / 0.8 - 1)
        assert (ranking.right, ranking.pairs) == (2, 2)
    assert "| ddp | 2 | 10.00 %" in page
    assert "| a | dear | priority | 0.50 % | 2 of 2 |" in page


def test_a_result_kept_before_schemes_were_told_apart_is_of_ddp() -> None:
    document = result(1.25, 1.20).document()
    old = {key: value for key, value in document.items() if key not in ("scheme", "family", "local_source")}
    assert Result.from_document(old) == result(1.25, 1.20)
