"""Files that earlier versions wrote load in this one: each kind, by its loader and by the commands that take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpsim.cli.app import run
from ddpsim.collectives.calibration_file import load_calibration
from ddpsim.errors import PlanError
from ddpsim.files import read_json
from ddpsim.measured import read_table
from ddpsim.planning.plan_file import plan_from
from ddpsim.prediction.document import load_prediction
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import read_trace
from ddpsim.validation.validate import validate
from ddpsim.workload.files import load_workload

VERSIONS = sorted(path for path in (Path(__file__).parent / "kept").iterdir() if path.is_dir())
pytestmark = pytest.mark.parametrize("kept", VERSIONS, ids=lambda path: path.name)


def test_a_workload_and_its_plan(kept: Path) -> None:
    workload = load_workload(str(kept / "workload.json"))
    assert (workload.device, workload.batch_size, len(workload.forward.host_s)) == ("cpu", 4, 3)
    document = read_json(kept / "plan.json", PlanError, "")
    plan = plan_from(document, workload.parameters, "plan.json")
    assert sorted(index for bucket in plan.buckets for index in bucket.parameters) == list(
        range(len(workload.parameters))
    )


def test_a_measured_table_a_calibration_and_a_machine(kept: Path) -> None:
    rows = read_table(str(kept / "allreduce.json")).rows
    assert [row.size_bytes for row in rows] == [4096 << 2 * k for k in range(5)]
    calibration = load_calibration(str(kept / "calibration.json"))
    assert calibration.backend == "gloo"
    assert calibration.fitted_names
    assert len(calibration.curves[0].points) == 5
    assert load_topology(str(kept / "topology.yaml")).nodes == 4


def test_a_prediction_and_a_run_and_the_one_against_the_other(kept: Path) -> None:
    trace = read_trace(kept / "run")
    assert trace.world_size == 2
    assert len(trace.of_rank(0)) >= 3
    result = validate(load_prediction(kept / "prediction.json"), trace)
    assert result.iterations.measured_s > 0
    assert result.buckets


def test_commands_take_them_together(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: str(kept / f"{name}.json") for name in ("workload", "plan", "calibration")}
    here = ("--topology", "loopback", "--gpus-per-node", "2")
    given = [word for name, path in files.items() for word in (f"--{name}", path)]
    assert run(["predict", *here, *given, "--json"]) == 0, capsys.readouterr().err
    assert run(["validate", str(kept / "prediction.json"), str(kept / "run"), "--json"]) == 0, capsys.readouterr().err
