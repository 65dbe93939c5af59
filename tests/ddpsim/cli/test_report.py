from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import pages

JOB = ("--topology", "p3.16xlarge", "--nodes", "2")


def test_a_plan_writes_a_report_with_the_command_that_made_it(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "a report.html"
    result = ddpsim("plan", "--workload", tiny, *JOB, "--report", path)
    assert result.code == 0
    assert f"note: {path.parent} is no folder yet, and is made" in result.err
    document = pages.data(path.read_text())
    assert document["command"] == f"ddpsim plan --workload {tiny} --topology p3.16xlarge --nodes 2 --report '{path}'"
    assert document["title"] == "Plan for tiny"
    assert result.out == ddpsim("plan", "--workload", tiny, *JOB).out


def test_what_is_noted_of_the_pace_is_in_the_report(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    err = ddpsim("plan", "--workload", tiny, "--topology", "dgx-a100", "--report", path).err
    [note] = pages.data(path.read_text())["notes"]
    assert note in err
    assert "compute times of V100" in note


def test_a_set_constant_stands_in_the_report_as_given(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    ddpsim("plan", "--workload", tiny, *JOB, "--set", "nccl.ddp.compute_slowdown=1.25", "--report", path)
    [constants] = [part for name, part in pages.sections(path.read_text()).items() if name.startswith("Constants")]
    listed = {row["constant"]: row for row in pages.table(constants)}
    row = listed["nccl.ddp.compute_slowdown"]
    assert (row["value"], row["source"], row[""]) == ("1.25", "given", "given")


def test_a_dash_is_standard_output_and_the_rest_goes_aside(ddpsim: Callable, tiny: Path) -> None:
    result = ddpsim("plan", "--workload", tiny, *JOB, "--report", "-")
    assert pages.data(result.out)["title"] == "Plan for tiny"
    assert "highest throughput" in result.err


def test_a_page_may_be_gzipped(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.html.gz"
    ddpsim("plan", "--workload", tiny, *JOB, "--report", path)
    assert pages.data(gzip.decompress(path.read_bytes()).decode())["title"] == "Plan for tiny"


def refused(ddpsim: Callable, tiny: Path, *options: object) -> Callable:
    return ddpsim("plan", "--workload", tiny, *JOB, *options).refused


def test_no_report_is_begun_that_cannot_be_written(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    refused(ddpsim, tiny, "--report", tmp_path)(str(tmp_path), "Is a directory", "name a file")
    (tmp_path / "file").write_text("")
    refused(ddpsim, tiny, "--report", tmp_path / "file" / "r.html")("Not a directory", "name a file")
    refused(ddpsim, tiny, "--report", "-", "--json")("--report - and --json", "keep one")


@pytest.mark.parametrize("other", ["-o", "--plot"])
def test_two_files_of_one_name_are_refused(ddpsim: Callable, tiny: Path, tmp_path: Path, other: str) -> None:
    path = tmp_path / "same.png"
    refused(ddpsim, tiny, other, path, "--report", tmp_path / "." / "same.png")("both write", other, "name two files")
    assert not path.exists()


def test_two_documents_on_standard_output_are_refused(ddpsim: Callable, tiny: Path) -> None:
    refused(ddpsim, tiny, "-o", "-", "--report", "-")("-o and --report both print on standard output", "name two")


def test_a_sweep_writes_a_report(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    sweep = ("sweep", "--workload", tiny, "--topology", "p3.16xlarge", "--nodes", "1,2", "--bucket-cap-mb", "1,4")
    path, lines = tmp_path / "r.html", tmp_path / "s.jsonl"
    result = ddpsim(*sweep, "--report", path, "-o", lines)
    assert result.code == 0
    rows = pages.table(pages.sections(path.read_text())["Steps"])
    assert [(row["nodes"], row["cap MiB"]) for row in rows] == [("1", "1"), ("1", "4"), ("2", "1"), ("2", "4")]
    assert pages.data(path.read_text())["command"].startswith("ddpsim sweep --workload ")


def test_a_validation_writes_a_report_beyond_its_bound_too(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    here = ("--topology", "loopback", "--gpus-per-node", "2", "--backend", "gloo")
    predicted, run, path = tmp_path / "predicted.json", tmp_path / "run", tmp_path / "r.html"
    predicted.write_text(ddpsim("predict", "--workload", tiny, *here, "--json").out)
    ddpsim("predict", "--workload", tiny, *here, "--scale-compute", "1.2", "--trace", run)
    result = ddpsim("validate", predicted, run, "--max-error", "1%", "--report", path)
    assert result.code == 1
    document = pages.data(path.read_text())
    assert document["title"] == "Validation: tiny on loopback"
    assert document["command"] == f"ddpsim validate {predicted} {run} --max-error 1% --report {path}"


def test_a_comparison_writes_a_report(ddpsim: Callable, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    compare = ("compare", "--workload", "mlp", "--topology", "dgx-1v", "--nodes", "1,2", "--price", "dgx-1v=20USD/h")
    assert ddpsim(*compare, "--report", path).code == 0
    rows = pages.table(pages.sections(path.read_text())["Machines side by side"])
    assert [row["GPUs"] for row in rows] == ["1 x 8", "2 x 8"]
    costs = pages.table(pages.sections(path.read_text())["What it costs"])
    assert [row["USD/h"] for row in costs] == ["20.0", "40.0"]
