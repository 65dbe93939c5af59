"""A campaign carried out on a pretended lab: microbenchmarks from a formula, runs from the simulator itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpexec.lab.campaign import campaign as campaign_module
from ddpexec.lab.campaign import stages
from ddpexec.lab.campaign.campaign import carry_out
from ddpexec.lab.campaign.spec import Campaign, Configuration, parse_campaign
from ddpexec.lab.netlab import support
from ddpsim.workload.files import load_workload, save_workload
from tests.ddpexec.lab.campaign.pretended import FILE, PretendedLab, go


def test_what_the_simulator_measures_it_predicts(campaign: Campaign, lab: PretendedLab, tmp_path: Path) -> None:
    results, failures = go(campaign, tmp_path)
    assert failures == []
    assert lab.commands == ["microbench", "run", "run", "run", "run"]
    assert [result.caps for result in results] == ["default", "cap5"]
    for result in results:
        assert result.wire_over_backward == pytest.approx(2, rel=1e-3)
        assert result.error == pytest.approx(0, abs=1e-9)
        assert max(map(abs, result.bucket_errors)) < 1e-6
        assert result.noise == 0
        assert result.baselines_s["one_process"] == pytest.approx(result.local_s)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["step_error_median"] == pytest.approx(0, abs=1e-9)
    assert len((tmp_path / "summary.md").read_text().splitlines()) > 30


def test_a_network_is_measured_anew_beside_each_model_that_computes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = "- {network: flat, model: mlp, batch_size: 8, vary: {bucket_cap_mb: [null, 5]}}"
    campaign = parse_campaign(FILE.replace("repeats: 2", "repeats: 1") + f"  {line}\n", "pretended.yaml")
    lab = PretendedLab(campaign, tmp_path)
    monkeypatch.setattr(stages, "run_in_lab", lab)
    monkeypatch.setattr(support, "list_missing", list)
    _, failures = go(campaign, tmp_path)
    assert failures == []
    replayed, computed = ["microbench", "run", "run"], [*["capture"] * stages.LAUNCHES, "microbench", "run", "run"]
    assert lab.commands == replayed + computed
    captured = tmp_path / "networks" / "flat-beside-mlp-b8" / "workload.json.gz"
    computing = [each for each in campaign.configurations if each.run.model is not None]
    for each in computing:
        assert (tmp_path / "runs" / each.name / "workload.json.gz").read_bytes() == captured.read_bytes()
    assert [" --under-load " in line for line in lab.lines if line.startswith("microbench")] == [False, True]
    assert {path.name for path in (tmp_path / "networks").iterdir()} == {"flat", "flat-beside-mlp-b8"}
    # A lab is a network of processes; a GPU that the machine has is not to be used.
    options = [("microbench", "--backend gloo"), ("run", "--backend gloo"), ("capture", "--device cpu")]
    for command, option in [*options, ("capture", "--batch-size 8")]:
        assert all(option in line for line in lab.lines if line.startswith(command))


def test_an_interrupted_campaign_goes_on_where_it_stopped(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    lab.failing = "cap5"
    results, failures = go(campaign, tmp_path)
    assert len(results) == 1
    assert len(failures) == 1
    assert "cap5" in failures[0]
    assert "a rank died" in failures[0]
    prediction = (tmp_path / "runs" / campaign.configurations[1].name / "prediction.json").read_bytes()
    assert len(json.loads(prediction)["first"]["iterations"]) == 5
    lab.failing, lab.commands = "", []
    again, failures = go(campaign, tmp_path)
    assert failures == []
    assert lab.commands == ["run", "run"]
    assert again[0] == results[0]
    assert (tmp_path / "runs" / campaign.configurations[1].name / "prediction.json").read_bytes() == prediction
    lab.commands = []
    assert go(campaign, tmp_path)[0] == again
    assert lab.commands == []


def test_a_fault_in_one_configuration_leaves_the_others_alone(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, first = campaign_module.write_prediction, campaign.configurations[0]

    def faulty(configuration: Configuration, *rest: Any) -> None:
        if configuration == first:
            raise ZeroDivisionError("by a fault")
        good(configuration, *rest)

    monkeypatch.setattr(campaign_module, "write_prediction", faulty)
    results, failures = go(campaign, tmp_path)
    assert [result.caps for result in results] == ["cap5"]
    assert len(failures) == 1
    assert failures[0].startswith(f"{first.name}: ZeroDivisionError: by a fault; see ")
    assert "Traceback" in (tmp_path / "runs" / first.name / "failure.txt").read_text()


def test_a_changed_configuration_is_done_anew_and_a_changed_network_measured_anew(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    go(campaign, tmp_path)
    lab.commands = []
    go(parse_campaign(FILE.replace("iterations: 3", "iterations: 4"), "c.yaml"), tmp_path)
    assert lab.commands == ["run"] * 4
    lab.commands = []
    go(parse_campaign(FILE.replace("1gbit", "2gbit"), "c.yaml"), tmp_path)
    assert lab.commands == ["microbench", *["run"] * 4]


def test_a_prediction_says_when_it_was_written_and_from_what(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    go(campaign, tmp_path)
    stamps = [
        json.loads((tmp_path / "runs" / each.name / "prediction.json").read_text())["campaign"]
        for each in campaign.configurations
    ]
    assert all(stamp["written_at"].endswith("Z") for stamp in stamps)
    assert len({stamp["inputs_fingerprint"] for stamp in stamps}) == 2


def test_runs_that_differ_are_held_against_by_their_mean(campaign: Campaign, lab: PretendedLab, tmp_path: Path) -> None:
    lab.stretch = {"run0": 1.0, "run1": 1.1}
    results, failures = go(campaign, tmp_path)
    assert failures == []
    for result in results:
        fast, slow = result.repeats_s
        assert slow == pytest.approx(1.1 * fast)
        assert result.step_s == pytest.approx(1.05 * fast)
        assert result.noise == pytest.approx(0.05 / 1.05)
        held = json.loads((tmp_path / "runs" / result.name / "validation.json").read_text())
        parts = [term["share_of_step"] for term in held["terms"][:6]]
        assert sum(parts) == pytest.approx(result.error)
        assert [bucket["finished_error"] for bucket in held["buckets"]] == pytest.approx(result.bucket_errors)
        assert max(result.bucket_errors) < 0


def test_runs_that_time_one_process_show_an_error_of_pace(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    lab.local_s = {"run0": 0.010, "run1": 0.012}
    results, failures = go(campaign, tmp_path)
    assert failures == []
    for result in results:
        held = json.loads((tmp_path / "runs" / result.name / "validation.json").read_text())
        assert (result.local_source, held["local_source"]) == ("measured", "run")
        assert result.local_s == pytest.approx(0.011)
        assert result.predicted_local_s != pytest.approx(0.011)
        assert held["overhead"]["measured_s"] == pytest.approx(result.step_s - 0.011)
        assert held["overhead"]["predicted_s"] == pytest.approx(result.predicted_s - result.predicted_local_s)
        assert result.overhead_error == pytest.approx(held["overhead"]["error"])
        assert result.error == pytest.approx(0), "the step itself is predicted; only the overhead shows the pace"
    assert json.loads((tmp_path / "summary.json").read_text())["local_measured"] == len(results)


def test_where_not_every_run_timed_one_process_it_is_as_predicted(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    lab.local_s = {"run1": 0.012}
    for result in go(campaign, tmp_path)[0]:
        held = json.loads((tmp_path / "runs" / result.name / "validation.json").read_text())
        assert (result.local_source, held["local_source"]) == ("predicted", "prediction")
        assert result.local_s == result.predicted_local_s
        assert held["overhead"]["measured_s"] == pytest.approx(result.overhead_s)


def _own(campaign: Campaign, folder: Path) -> Path:
    return folder / "runs" / campaign.configurations[0].name


def test_a_run_whose_prediction_is_gone_is_not_predicted_afterwards(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    go(campaign, tmp_path)
    own = _own(campaign, tmp_path)
    for name in ("prediction.json", "result.json"):
        (own / name).unlink()
    _, failures = go(campaign, tmp_path)
    assert len(failures) == 1
    assert "it has run, but its prediction is gone; delete the folder" in failures[0]
    assert not (own / "prediction.json").exists()


def test_a_prediction_from_other_constants_is_made_anew_before_runs_and_refused_after_them(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    lab.failing = "default"
    go(campaign, tmp_path)
    own = _own(campaign, tmp_path)
    old = json.loads((own / "prediction.json").read_text())["campaign"]["inputs_fingerprint"]
    calibration = tmp_path / "networks" / "flat" / "calibration.json"
    calibration.write_text(calibration.read_text() + "\n")
    lab.failing = ""
    results, failures = go(campaign, tmp_path)
    assert failures == []
    assert len(results) == 2
    assert json.loads((own / "prediction.json").read_text())["campaign"]["inputs_fingerprint"] != old
    calibration.write_text(calibration.read_text() + "\n")
    (own / "result.json").unlink()
    _, failures = go(campaign, tmp_path)
    assert ["its workload, network or constants have changed since it was predicted" in f for f in failures] == [True]


def test_a_workload_file_that_changed_is_run_anew(campaign: Campaign, lab: PretendedLab, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    save_workload(load_workload("mlp"), given)
    text = FILE.replace("workload: mlp", f"workload: {given}")
    own = parse_campaign(text, "c.yaml")
    lab.configurations = {each.name: each for each in own.configurations}
    go(own, tmp_path / "out")
    lab.commands = []
    save_workload(replace(load_workload("mlp"), batch_size=7), given)
    _, failures = go(own, tmp_path / "out")
    assert failures == []
    assert lab.commands == ["run"] * 4


def test_other_sizes_are_measured_anew(campaign: Campaign, lab: PretendedLab, tmp_path: Path) -> None:
    lab.failing = "default"
    go(campaign, tmp_path, "*-default")
    lab.commands, lab.lines = [], []
    go(parse_campaign(FILE + "microbench: {stepfactor: 4, load_seconds: 1}\n", "c.yaml"), tmp_path, "*-default")
    assert lab.commands[0] == "microbench"
    assert " -f 4 --load-seconds 1 " in lab.lines[0]


def test_a_table_that_was_removed_takes_its_constants_with_it(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    lab.failing = "default"
    go(campaign, tmp_path, "*-default")
    network = tmp_path / "networks" / "flat"
    (network / "allreduce.json").unlink()
    (network / "calibration.json").write_text("of the old table")
    lab.failing = ""
    assert go(campaign, tmp_path, "*-default")[1] == []


def test_a_result_that_cannot_be_read_follows_from_the_runs(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    results, _ = go(campaign, tmp_path)
    lab.commands = []
    (_own(campaign, tmp_path) / "result.json").write_text('{"name": "of another version"}')
    assert go(campaign, tmp_path) == (results, [])
    assert lab.commands == []


@pytest.mark.usefixtures("busy_is_told")
def test_runs_beside_other_work_are_told_as_they_end_and_on_the_page(
    campaign: Campaign, lab: PretendedLab, tmp_path: Path
) -> None:
    lab.busy = {"run0": 0.1, "run1": 1.25}
    lines: list[str] = []
    results, _ = carry_out(campaign, tmp_path, lines.append)
    assert [result.other_work_processors for result in results] == [1.25, 1.25]
    assert sum("note: the machine was busy: other work took 1.2 of its 2" in line for line in lines) == 2
    names = ", ".join(each.name for each in campaign.configurations)
    assert f"busy with other work, and slower for it: {names}." in (tmp_path / "summary.md").read_text()
