"""Files that earlier versions wrote load in this one: each kind, by its loader and by the commands that take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpsim.calibrating.measured import read_table
from ddpsim.cli.app import run
from ddpsim.collectives.calibration_file import load_calibration
from ddpsim.common.errors import PlanError
from ddpsim.common.files import read_json
from ddpsim.common.workers.journal import Journal
from ddpsim.planning.plan_file import plan_from
from ddpsim.planning.validate import validate
from ddpsim.prediction.document import load_prediction
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace
from ddpsim.workload.files import load_workload

VERSIONS = sorted(path for path in (Path(__file__).parent / "kept").iterdir() if path.is_dir())


def having(*names: str) -> pytest.MarkDecorator:
    """Return what runs a test with the folder of each version that has files of these names."""
    folders = [folder for folder in VERSIONS if all((folder / name).exists() for name in names)]
    assert folders, names
    return pytest.mark.parametrize("kept", folders, ids=lambda path: path.name)


@having("workload.json", "plan.json")
def test_a_workload_and_its_plan(kept: Path) -> None:
    workload = load_workload(str(kept / "workload.json"))
    assert (workload.device, workload.batch_size, len(workload.forward.host_s)) == ("cpu", 4, 3)
    document = read_json(kept / "plan.json", PlanError, "")
    plan = plan_from(document, workload.parameters, "plan.json")
    assert sorted(index for bucket in plan.buckets for index in bucket.parameters) == list(
        range(len(workload.parameters))
    )


@having("allreduce.json", "calibration.json", "topology.yaml")
def test_a_measured_table_a_calibration_and_a_machine(kept: Path) -> None:
    rows = read_table(str(kept / "allreduce.json")).rows
    assert [row.size_bytes for row in rows] == [4096 << 2 * k for k in range(5)]
    calibration = load_calibration(str(kept / "calibration.json"))
    assert calibration.backend == "gloo"
    assert calibration.fitted_names
    assert len(calibration.curves[0].points) == 5
    assert load_topology(str(kept / "topology.yaml")).nodes == 4


@having("prediction.json", "run")
def test_a_prediction_and_a_run_and_the_one_against_the_other(kept: Path) -> None:
    trace = read_trace(kept / "run")
    assert trace.world_size == 2
    assert len(trace.of_rank(0)) >= 3
    result = validate(load_prediction(kept / "prediction.json"), trace)
    assert result.iterations.measured_s > 0
    assert result.buckets


@having("workload.json", "plan.json", "calibration.json", "prediction.json")
def test_commands_take_them_together(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: str(kept / f"{name}.json") for name in ("workload", "plan", "calibration")}
    here = ("--topology", "loopback", "--gpus-per-node", "2")
    given = [word for name, path in files.items() for word in (f"--{name}", path)]
    assert run(["predict", *here, *given, "--json"]) == 0, capsys.readouterr().err
    assert run(["validate", str(kept / "prediction.json"), str(kept / "run"), "--json"]) == 0, capsys.readouterr().err


def keys(value: object, place: str = "") -> set[str]:
    """Return the keys of a document, those inside of others behind theirs; of a list those of its first item."""
    if isinstance(value, list):
        return keys(value[0], f"{place}0.") if value else set()
    if not isinstance(value, dict):
        return set()
    return {place + key for key in value} | {
        name for key, each in value.items() for name in keys(each, f"{place}{key}.")
    }


@having("sweep.jsonl", "compare.jsonl")
def test_lines_of_a_sweep_and_a_comparison_have_all_their_keys_today(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = str(kept.parent / "first" / "workload.json")
    asked = {
        "sweep": f"--workload {workload} --topology loopback --gpus-per-node 2 --bucket-cap-mb 0.01,25",
        "compare": "--workload mlp --topology dgx-1v --topology p3.16xlarge --nodes 1",
    }
    for command, words in asked.items():
        out = tmp_path / f"{command}.jsonl"
        assert run([command, *words.split(), "-o", str(out)]) == 0, capsys.readouterr().err
        before, now = (
            [json.loads(line) for line in path.read_text().splitlines()] for path in (kept / f"{command}.jsonl", out)
        )
        assert [keys(one) - keys(other) for one, other in zip(before, now, strict=True)] == [set(), set()]


@having("sweep.jsonl")
def test_each_line_of_a_sweep_is_a_prediction(kept: Path, tmp_path: Path) -> None:
    for line in (kept / "sweep.jsonl").read_text().splitlines():
        (tmp_path / "line.json").write_text(line)
        assert load_prediction(tmp_path / "line.json")["iteration_s"] == json.loads(line)["iteration_s"]


@having("half.jsonl.partial", "sweep.jsonl")
def test_a_journal_is_read_and_what_it_holds_of_another_version_is_told(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "half.jsonl.partial"
    path.write_bytes((kept / path.name).read_bytes())
    journal = Journal(path)
    assert (journal.entries, journal.is_new) == ({}, False)
    journal.close(done=False)
    here = ("--topology", "loopback", "--gpus-per-node", "2", "--bucket-cap-mb", "0.01,25")
    workload = str(kept.parent / "first" / "workload.json")
    assert run(["sweep", "--workload", workload, *here, "-o", str(tmp_path / "half.jsonl")]) == 0
    assert "what it holds is of other questions, parts of these, or another version" in capsys.readouterr().err


@having("tuning")
def test_a_tuners_page(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(kept / "tuning")]) == 0
    assert "kept     DistributedDataParallel(model, bucket_cap_mb=100), 95 ms a step" in capsys.readouterr().out


@having("record")
def test_a_campaigns_record(kept: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ddpexec.lab.campaign.record import unpack

    out = tmp_path / "out"
    campaign = unpack(kept / "record", out)
    assert campaign.configurations
    for each in campaign.configurations:
        folder = out / "runs" / each.name
        for repeat in range(each.repeats):
            result = validate(load_prediction(folder / "prediction.json"), read_trace(folder / f"run{repeat}"))
            assert result.iterations.measured_s > 0
