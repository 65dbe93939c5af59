"""What sweep, plan and compare say where a step has several micro-batches: times are of the step, wherever shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.common.tables.cells import format_short
from ddpsim.common.units import format_time
from tests import pages

COUNT = 4
PLACE = ("--topology", "dgx-1v", "--nodes", "2", "--iterations", "4")
ACCUMULATED = ("--accumulate", str(COUNT))
COMMANDS = {
    "sweep": ("sweep", "--workload", "mlp", *PLACE, "--bucket-cap-mb", "25"),
    "plan": ("plan", "--workload", "mlp", *PLACE),
    "compare": ("compare", "--workload", "mlp", *PLACE),
}
TABLES = {"sweep": "Steps", "plan": "Steps", "compare": "Machines side by side"}


def document_of(out: str) -> dict:
    """Return the one row that a command's JSON has."""
    (row,) = json.loads(out)["rows"]
    return row


@pytest.fixture(params=list(COMMANDS))
def told(request: pytest.FixtureRequest, ddpsim: Callable, tmp_path: Path) -> tuple[str, dict, str, str]:
    """Return the command's name, its JSON, its text and its page."""
    name, page = request.param, tmp_path / "r.html"
    row = document_of(ddpsim(*COMMANDS[name], *ACCUMULATED, "--json").out)
    text = ddpsim(*COMMANDS[name], *ACCUMULATED, "--report", page).out
    return name, row, text, page.read_text()


def test_text_and_page_have_the_steps_time_and_a_micro_batchs_beside_it(told: tuple[str, dict, str, str]) -> None:
    name, row, text, page = told
    step_s, one_s = row["step_s"], row["micro_batch_s"]
    assert step_s == pytest.approx(COUNT * one_s)
    assert one_s == row["iteration_s"]
    header = next(line for line in text.splitlines() if line.lstrip().startswith(("nodes", "machine")))
    assert "step ms" in header
    assert "iteration" not in header
    said = f"{step_s * 1e3:.2f}" if name == "sweep" else format_short(step_s * 1e3)
    assert said in text.split()
    each = f"{format_short(one_s * 1e3)} of {COUNT}" if name != "plan" else f"of {COUNT} micro-batches"
    assert each in " ".join(text.split())
    verdict = " ".join(pages.data(page)["verdict"])
    assert f" of {COUNT} micro-batches, {format_time(one_s)} each" in verdict
    (shown,) = pages.table(pages.sections(page)[TABLES[name]])
    assert shown["step ms"].split()[0] == said
    if name != "compare":
        assert shown["exposed ms"] == f"{COUNT * row['exposed_comm_s'] * 1e3:.2f}"


def test_a_page_names_a_time_once_and_what_its_timeline_draws(told: tuple[str, dict, str, str]) -> None:
    _, row, _, page = told
    parts = pages.sections(page)
    assert "One micro-batch of a step" in parts
    assert "One step" not in parts
    headings = [each.text for each in parts["All values"].all("th")]
    assert len([each for each in headings if each == "step ms"]) == 1
    (values,) = pages.table(parts["All values"])
    assert values["step ms"].split()[0] == format_short(row["step_s"] * 1e3)
    assert values["micro-batch ms"] == f"{format_short(row['micro_batch_s'] * 1e3)} of {COUNT}"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_step_of_one_micro_batch_names_none(name: str, ddpsim: Callable, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    text = ddpsim(*COMMANDS[name], "--report", page).out
    assert "micro-batch" not in text
    parts = pages.sections(page.read_text())
    assert "One step" in parts
    headings = [each.text for each in (*parts["All values"].all("th"), *parts[TABLES[name]].all("th"))]
    assert "micro-batch ms" not in headings
    assert "micro-batches" not in " ".join(pages.data(page.read_text())["verdict"])
