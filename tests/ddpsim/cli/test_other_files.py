"""Files of another kind, files that are kept, and the option that an error about a file begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpsim.common import shipped

FILES = {
    "machine": ("box.yaml", "name: box\nnode: dgx-1v\n", "a machine"),
    "gpu": ("H100.yaml", shipped.path("gpu", "H100").read_text(encoding="utf-8"), "a GPU"),
    "plan": ("plan.json", '{"schema": "ddpsim.plan/1"}', "a plan"),
    "calibration": ("calibration.json", '{"schema": "ddpsim.calibration/1"}', "a calibration"),
    "trace": ("trace.json", '{"traceEvents": []}', "a profiler's trace"),
    "xml": ("system.xml", "<system version='1'></system>", "NCCL's XML of a machine"),
    "prices": ("prices.yaml", "currency: EUR\nper_hour: {dgx-1v: 9}\n", "a list of prices"),
}
READERS = {
    "--topology": (("predict", "--workload", "resnet50", "--topology"), "a machine"),
    "--workload": (("predict", "--topology", "dgx-1v", "--workload"), "a workload"),
    "--plan": (("predict", "--workload", "resnet50", "--topology", "dgx-1v", "--plan"), "a plan"),
    "--calibration": (("predict", "--workload", "resnet50", "--topology", "dgx-1v", "--calibration"), "a calibration"),
    "--beside": (("predict", "--workload", "resnet50", "--topology", "dgx-1v", "--beside"), "a job"),
    "--prices": (("compare", "--workload", "resnet50", "--topology", "dgx-1v", "--prices"), "a list of prices"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_kind_is_named_in_one_line_with_its_option(
    ddpsim: Callable[..., Any], tmp_path: Path, kind: str, reader: str
) -> None:
    name, text, found = FILES[kind]
    words, wanted = READERS[reader]
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    if found == wanted:
        return
    result = ddpsim(*words, file)
    assert result.code == 2
    assert result.err.startswith(f"error: {reader} {file}: is {found}, not {wanted}; ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("words", [("--topology", "box.yaml"), ("--topology=box.yaml",)])
def test_an_error_in_a_file_begins_with_its_option(
    ddpsim: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("box.yaml").write_text("name: box\nnode: {gpus: {count: many, model: V100}}\n", encoding="utf-8")
    result = ddpsim("predict", "--workload", "resnet50", *words)
    assert result.err.startswith("error: --topology box.yaml: node.gpus.count (line 2): 'many'")


SWEEP = ("sweep", "--topology", "dgx-1v", "--nodes", "1", "--bucket-cap-mb", "5")


def test_what_is_there_and_no_page_is_kept(ddpsim: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    notes, page, data = tmp_path / "notes.txt", tmp_path / "page.html", tmp_path / "rows.jsonl"
    foreign = "<!doctype html><title>ours</title>"
    for text in ("what I saw on Monday\n", '{"a": 1}', foreign):
        notes.write_text(text, encoding="utf-8")
        refused = ddpsim(*SWEEP, "--workload", tiny, "--report", notes)
        assert (refused.code, notes.read_text(encoding="utf-8")) == (2, text)
        assert f"--report: {notes} is there and is no page that this writes" in refused.err
    for option in ("-o", "--plot"):
        refused = ddpsim(*SWEEP, "--workload", tiny, option, notes)
        assert (refused.code, notes.read_text(encoding="utf-8")) == (2, foreign)
    notes.write_text("", encoding="utf-8")
    for _ in range(2):
        written = ddpsim(*SWEEP, "--workload", tiny, "--report", page, "-o", data, "--plot", tmp_path / "plot.png")
        assert written.code == 0, written.err
    assert ddpsim(*SWEEP, "--workload", tiny, "--report", notes).code == 0


def test_prices_of_machines_that_are_not_compared_are_noted(
    ddpsim: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\ndate: 2026-11-01\nper_hour: {dgx-1v: 9, mine: 3}\n", encoding="utf-8")
    compared = ddpsim(
        "compare", "--workload", tiny, "--topology", "dgx-1v", "--nodes", "1", "--prices", prices, "--json"
    )
    assert compared.document["rows"][0]["cost"]["per_hour"] == 9
    assert f"note: {prices} has prices of machines that are not compared: mine\n" in compared.err
