"""`--columns`: any declared column in any command, and a new one in text, CSV and page by its declaration alone."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddpsim.common.tables import COLUMNS, parse_columns
from ddpsim.common.tables.declared import DECLARED, SHOWN, DeclaredColumn
from ddpsim.common.tables.table import WIDEST
from tests import pages

HERE = ("--workload", "mlp", "--topology", "dgx-1v", "--nodes", "2")
COMMANDS = {
    "plan": ("plan", *HERE, "--bucket-cap-mb", "1"),
    "sweep": ("sweep", *HERE, "--bucket-cap-mb", "1,25"),
    "compare": ("compare", *HERE, "--price", "dgx-1v=20USD/h", "--samples-per-epoch", "1000"),
    "plan --schemes": ("plan", *HERE, "--schemes", "ddp,zero1"),
    "plan --search": ("plan", *HERE, "--search", "--bucket-cap-mb", "1", "--schemes", "ddp"),
    "compression": ("compression", *HERE, "--schemes", "fp16"),
}
WORDS = {"rate_Bps", "rate_low_Bps", "rate_high_Bps"}
"""Keys of `compression` that `pays_below` says."""


@pytest.mark.parametrize("name", COMMANDS)
def test_each_value_of_each_commands_rows_can_be_asked_for_in_all(name: str, ddpsim: Callable) -> None:
    for row in ddpsim(*COMMANDS[name], "--json").document["rows"]:
        keys = {key for key, value in row.items() if not isinstance(value, list | dict)}
        assert parse_columns(",".join(keys - WORDS))


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_asked_for_is_the_table_and_json_stays_whole(name: str, ddpsim: Callable) -> None:
    asked = ("--columns", "nodes,machine,scheme,step_s,cost_per_hour")
    told = ddpsim(*COMMANDS[name], *asked)
    assert told.code == 0
    header = next(line for line in told.out.splitlines() if line.startswith("nodes"))
    assert header.split()[:5] == ["nodes", "machine", "scheme", "step", "ms"]
    assert ddpsim(*COMMANDS[name], *asked, "--json").document == ddpsim(*COMMANDS[name], "--json").document
    rows = ddpsim(*COMMANDS[name], "--json").document
    every = [*rows["rows"], *rows.get("may_not_fit", ())]
    lines = list(csv.DictReader(ddpsim(*COMMANDS[name], *asked, "--csv").out.splitlines()))
    assert [float(line["step_s"]) for line in lines] == [row["step_s"] for row in every]
    assert {line["machine"] for line in lines} == {"dgx-1v"}
    assert {line["cost_per_hour"] for line in lines} == {"40.0" if name == "compare" else ""}


@pytest.mark.parametrize(
    ("price", "costs"), [((), set()), (("--price", "dgx-1v=20USD/h"), {"cost_per_hour", "pareto"})]
)
def test_csv_of_a_comparison_has_costs_where_there_are_prices(
    price: tuple[str, ...], costs: set[str], ddpsim: Callable
) -> None:
    [line] = csv.DictReader(ddpsim("compare", *HERE, *price, "--csv").out.splitlines())
    assert {"machine", "step_s"} < set(line)
    assert set(line) & {"cost_per_hour", "pareto"} == costs


def test_all_columns_at_once_are_tables_below_each_other(ddpsim: Callable) -> None:
    told = ddpsim(*COMMANDS["compare"], "--columns", ",".join(COLUMNS))
    tables = [line for line in told.out.splitlines() if line.startswith("machine")]
    assert len(tables) > 5
    assert max(map(len, tables)) <= WIDEST


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--columns", "stepp_s"), "unknown column 'stepp_s'; did you mean step_s?\n  there are machine, "),
        (("--columns", "step_lo_s"), "unknown column 'step_lo_s'; did you mean step_low_s?"),
        (("--columns", "machine_low"), "unknown column 'machine_low'; did you mean machine?"),
        (("--columns", ""), "unknown column ''"),
        (("--columns", "nodes,nodes"), "names a column twice"),
        (("--csv", "--json"), "--csv and --json are both given"),
    ],
)
def test_what_is_no_column_is_refused_before_any_work(asked: tuple[str, ...], said: str, ddpsim: Callable) -> None:
    told = ddpsim("compare", "--workload", "none", "--topology", "none", *asked)
    assert (told.code, told.out) == (2, "")
    assert said in told.err


def test_a_column_is_added_by_its_declaration(
    ddpsim: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = DeclaredColumn("hours", "Hours of 1,000 steps.", read=lambda row: f"{float(str(row['step_s'])) / 3.6:.4f}")
    shown = SHOWN["compare"]
    for known in (COLUMNS, DECLARED):
        monkeypatch.setitem(known, "hours", added)  # type: ignore[arg-type]
    monkeypatch.setitem(SHOWN, "compare", replace(shown, names=("machine", "hours")))  # type: ignore[arg-type]
    page = tmp_path / "r.html"
    told = ddpsim(*COMMANDS["compare"], "--report", page)
    (row,) = pages.table(pages.sections(page.read_text())["Machines side by side"])
    hours = f"{ddpsim(*COMMANDS['compare'], '--json').document['rows'][0]['step_s'] / 3.6:.4f}"
    assert row == {"machine": "dgx-1v", "hours": hours}
    assert ["dgx-1v", hours] in [line.split() for line in told.out.splitlines()]
    (line,) = csv.DictReader(ddpsim(*COMMANDS["compare"], "--csv").out.splitlines())
    assert (line["machine"], line["hours"]) == ("dgx-1v", hours)
