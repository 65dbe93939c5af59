"""The validation page of a small kept record, made on a real lab; its numbers are recomputed, and follow the code."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ddpexec.lab.campaign import campaign
from ddpexec.lab.campaign.report import MEASURES
from ddpexec.lab.campaign.spec import Configuration
from ddpsim.common.errors import InputError
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from studies.validation.evidence import Evidence, Recorded, load
from studies.validation.factors import by_factor, factors
from studies.validation.round_robin import gains
from studies.validation.validation_page import section

RECORD = Path(__file__).resolve().parents[2] / "tests" / "ddpexec" / "lab" / "campaign" / "recorded"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return load(RECORD, tmp_path_factory.mktemp("work"))


def test_predictions_are_older_than_the_runs_and_follow_from_what_is_kept(evidence: Evidence) -> None:
    assert len(evidence.recorded) == 3
    assert evidence.missing == []
    for each in evidence.recorded:
        assert timedelta(0) < each.first_run_at - each.written_at < timedelta(minutes=3)
        assert each.inputs_agree
        assert len(each.before.result.repeats_s) == 2


def test_a_change_of_the_model_moves_todays_column_alone(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(job: Job) -> Any:
        made = predict(job)
        return replace(made, summary=replace(made.summary, iteration_s=2 * made.summary.iteration_s))

    monkeypatch.setattr(campaign, "predict", slower)
    changed = load(RECORD, tmp_path)
    for was, is_ in zip(evidence.recorded, changed.recorded, strict=True):
        assert is_.before == was.before
        assert is_.now.result.predicted_s == pytest.approx(2 * was.now.result.predicted_s)
        assert is_.now.result.step_s == was.now.result.step_s


def test_a_record_whose_constants_were_changed_is_told(tmp_path: Path) -> None:
    shutil.copytree(RECORD, tmp_path / "record")
    file = tmp_path / "record" / "networks" / "delayed" / "calibration.json"
    file.write_text(file.read_text().replace('"rows": 5', '"rows": 6'))
    agree = {each.configuration.name: each.inputs_agree for each in load(tmp_path / "record", tmp_path / "w").recorded}
    assert [name for name, fine in agree.items() if not fine] == ["mlp-delayed-wire5-view-ddpexec-default"]


def test_a_prediction_written_after_its_run_is_told(evidence: Evidence, tmp_path: Path) -> None:
    late = replace(evidence.recorded[0], written_at=evidence.recorded[0].first_run_at + timedelta(seconds=1))
    text = section(replace(evidence, recorded=[late, *evidence.recorded[1:]]), tmp_path, "x")
    assert "2 of 3 before the first iteration" in text
    assert "3 of 3 before the first iteration" in section(evidence, tmp_path, "x")


def test_the_section_has_every_measure_and_a_row_a_configuration(evidence: Evidence, tmp_path: Path) -> None:
    text = section(evidence, tmp_path, "lab")
    for measure in MEASURES:
        assert f"| {measure.label} | " in text
    for each in evidence.recorded:
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {each.configuration.name} |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        result = each.before.result
        assert cells[2] == f"{result.step_s * 1e3:.1f}"
        assert cells[5] == f"{(result.predicted_s / result.step_s - 1) * 100:+.2f} %"
    assert {path.name for path in tmp_path.iterdir()} == {f"lab-{part}.png" for part in ("steps", "errors", "buckets")}
    assert section(evidence, tmp_path, "lab") == text


def test_factors_of_one_value_are_left_out(evidence: Evidence) -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in by_factor(evidence.recorded)][2:]
    assert {row[0] for row in rows} == {
        *("network", "delay", "wire / backward", "implementation", "workload", "caps", "gradients as views")
    }
    assert [row[1:3] for row in rows if row[0] == "delay"] == [["0 ms", "2"], ["1 ms", "1"]]
    configuration: Configuration = evidence.recorded[0].configuration
    assert factors(configuration)["wire / backward"] == "1"


def test_groups_are_compared_with_one_group_where_all_else_is_alike(evidence: Evidence) -> None:
    def with_groups(each: Recorded, groups: int, step_s: float, predicted_s: float) -> Recorded:
        run = each.configuration.run.model_copy(update={"process_groups": groups, "network": "far"})
        result = replace(each.before.result, step_s=step_s, predicted_s=predicted_s, repeats_s=(step_s,))
        held = replace(each.before, result=result)
        return replace(each, configuration=replace(each.configuration, run=run), before=held, now=held)

    first, *others = evidence.recorded
    rows = list(gains([with_groups(first, 2, 0.8, 0.7), *others, with_groups(first, 1, 1.0, 1.0)]))[2:]
    assert rows == [
        "| far | 1 | 1000 | - | +0.00 % | 1000 | +0.00 % | 1000 | +0.00 % |",
        "| far | 2 | 800 | - | +20.00 % | 700 | +30.00 % | 700 | +30.00 % |",
    ]


def test_a_damaged_prediction_is_bad_input(tmp_path: Path) -> None:
    shutil.copytree(RECORD, tmp_path / "record")
    (tmp_path / "record" / "networks" / "pair" / "allreduce.json").write_text("[]")
    with pytest.raises(InputError, match=r"allreduce\.json"):
        load(tmp_path / "record", tmp_path / "w")


@pytest.mark.parametrize(
    ("key", "value", "cell"),
    [
        ("step_error_median", 0.02, "2.00 %"),
        ("step_error_median", 0.021, "2.10 %, missed"),
        ("band_coverage", 0.95, "95.00 %, missed"),
        ("band_coverage", 0.74, "74.00 %, missed"),
        ("captured_share_mean", 0.95, "95.00 %"),
        ("captured_share_mean", None, "-"),
        ("noise_median", 0.5, "50.00 %"),
    ],
)
def test_what_is_out_of_reach_is_marked(key: str, value: float | None, cell: str) -> None:
    (measure,) = (each for each in MEASURES if each.key == key)
    assert measure.cell(value) == cell
