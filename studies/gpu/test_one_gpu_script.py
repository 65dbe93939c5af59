"""`make gpu`'s script on the CPU: it goes on after a step that fails, resumes, and reports; needs no GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ddpsim.workload.files import load_workload
from studies.gpu import steps
from studies.gpu.one_gpu import main
from tests import forked

SMALL, LARGE = "capture-mlp-fp32-b16", "capture-mlp-fp32-b32"


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the steps' commands; that a step is a process with a limit is for `test_steps`."""

    def carry_out(
        command: Sequence[str], environment: Mapping[str, str], place: Path, folder: Path, limit_s: float, _: object
    ) -> int:
        done = forked.command(["python", *command[1:]], place, environment, limit_s)
        (folder / "stdout.txt").write_text(done.stdout)
        (folder / "stderr.txt").write_text(done.stderr)
        return done.returncode

    monkeypatch.setattr(steps, "carry_out", carry_out)


def rows(report: str) -> dict[str, list[str]]:
    """Return the rows of the report's first table by step."""
    lines = report.partition("## Steps")[2].partition("##")[0].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_a_step_that_fails_stops_no_other_and_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "workloads" / "mlp@cpu-fp32-b16.json.gz"
    in_the_way.mkdir(parents=True)
    command = ["--out", str(tmp_path), "--device", "cpu", "--quick", "--only", "capture-mlp-*"]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert f"[1/2] {SMALL}: $ python -m ddpexec capture --model mlp --precision fp32 --batch-size 16" in told
    assert f"failed: {SMALL}\n" in told
    found = rows((tmp_path / "report.md").read_text())
    assert found[SMALL][0] == "failed"
    assert "cannot be written: Is a directory" in found[SMALL][2]
    assert found[LARGE][0] == "ok"
    assert found["bench"] == ["skipped", "-", "not chosen by --only"]
    kept = (tmp_path / "steps" / LARGE / "result.json").read_bytes()

    in_the_way.rmdir()
    assert main(command) == 0
    told = capsys.readouterr().err
    assert f"[2/2] {LARGE}: done before" in told
    assert (tmp_path / "steps" / LARGE / "result.json").read_bytes() == kept
    report = (tmp_path / "report.md").read_text()
    assert {rows(report)[name][0] for name in (SMALL, LARGE)} == {"ok"}
    workload = load_workload(in_the_way)
    assert workload.name == "mlp@cpu-fp32-b16"
    assert f"| {workload.name} | " in report.partition("## Captures")[2]


def test_another_machines_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "machine.json").write_text(json.dumps({"device": "cuda", "model": "H100"}))
    assert main(["--out", str(tmp_path), "--device", "cpu"]) == 2
    assert "holds measurements of H100, this is cpu; give another folder" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "new"), "--device", "cpu", "--only", "capture-mpl"]) == 2
    assert "--only: unknown step 'capture-mpl'; did you mean capture-mlp" in capsys.readouterr().err
