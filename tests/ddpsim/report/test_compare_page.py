from __future__ import annotations

from pathlib import Path

import pytest

from ddpsim import compare
from ddpsim.common.tables.cells import format_band, format_short
from ddpsim.planning.comparison import Comparison
from ddpsim.planning.prices import Price
from ddpsim.report import compare_report, render
from tests import pages
from tests.browser import Page

MACHINES = ("dgx-1v", "p3.16xlarge")
PRICES = {"dgx-1v": Price(20.0, "USD"), "p3.16xlarge": Price(24.5, "USD")}
RATES = (("nic", 3.125e9), ("nic", 12.5e9))


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare(["resnet50"], MACHINES, nodes=[1, 2], link_rates=RATES, prices=PRICES, samples_per_epoch=1.28e6)


@pytest.fixture(scope="module")
def advised() -> Comparison:
    """A comparison of one machine with break-even points."""
    return compare(["mlp"], ["p3.16xlarge"], nodes=[2], advice=True, efficiency=0.5)


def test_the_verdict_is_the_cheapest_and_the_fastest(compared: Comparison) -> None:
    first, second = compare_report(compared).verdict
    cheapest = min(compared.rows, key=lambda row: row.per_million_samples)  # type: ignore[arg-type, return-value]
    fastest = max(compared.rows, key=lambda row: row.samples_per_s)
    assert f"for least on {cheapest.nodes} node of {cheapest.machine}: " in first
    assert f"{20 / 3600 * 1e6 / cheapest.samples_per_s[0]:.4g} (80 % band " in first
    assert f"fastest is {fastest.nodes} nodes of {fastest.machine}" in second
    assert f"bound by {cheapest.bound.by}" in second


def test_without_prices_the_fastest_is_best_and_nothing_costs(compared: Comparison) -> None:
    free = Comparison(tuple(row for row in compare(["resnet50"], MACHINES, nodes=[1]).rows))
    page = render(compare_report(free))
    assert "trains fastest on " in pages.data(page)["verdict"][0]
    assert not any("cost" in heading for heading in pages.table(pages.sections(page)["Machines side by side"])[0])
    assert not {"Curves", "What it costs"} & pages.sections(page).keys()


def test_a_chart_of_one_point_is_not_drawn(compared: Comparison) -> None:
    one = Comparison(compared.rows[:1])
    assert one.rows[0].per_million_samples is not None
    assert "Curves" not in pages.sections(render(compare_report(one)))
    assert "Curves" in pages.sections(render(compare_report(Comparison(compared.rows[:2]))))


def test_the_tables_have_each_row_with_its_bands_and_costs(compared: Comparison) -> None:
    sections = pages.sections(render(compare_report(compared)))
    rows, costs = (pages.table(sections[title]) for title in ("Machines side by side", "What it costs"))
    assert list(sections).index("What it costs") < list(sections).index("Machines side by side")
    for shown, paid, row in zip(rows, costs, compared.rows, strict=True):
        assert row.price is not None
        assert (paid["machine"], paid["GPUs"], paid["rate"]) == (shown["machine"], shown["GPUs"], shown["rate"])
        assert paid["USD/h"] == format_short(row.price.per_hour * row.nodes)
        assert (shown["machine"], shown["GPUs"]) == (row.machine, f"{row.nodes} x 8")
        assert shown["rate"] == f"{row.link_rate * 8e-9:g} Gb/s"  # type: ignore[operator]
        assert shown["step ms"] == format_band(row.step_s, 1e3)
        assert row.per_million_samples is not None
        assert paid["USD a million samples"] == format_band(row.per_million_samples)
        assert paid["an epoch"].startswith(f"{format_short(1.28e6 / row.samples_per_s[0] / 60)} (")
        assert shown["link"] == (row.bound.link or "–")
        assert paid["Pareto"] == ("*" if row.pareto else "")


def test_curves_are_over_nodes_rates_and_cost(compared: Comparison) -> None:
    sections = pages.data(render(compare_report(compared)))["sections"]
    nodes, rate, cost = next(part["charts"] for part in sections if part["kind"] == "charts")
    assert nodes["ticks"] == ["1", "2"]
    assert rate["ticks"] == ["25", "100"]
    assert [line["label"] for line in rate["lines"]] == ["2 nodes of dgx-1v", "2 nodes of p3.16xlarge"]
    for line in rate["lines"]:
        steps = [y for _, y, _, _ in line["points"]]
        assert steps == sorted(steps, reverse=True)
    *machines, front = cost["lines"]
    assert sum(len(line["points"]) for line in machines) == len(compared.rows)
    assert len(front["points"]) == sum(row.pareto for row in compared.rows)
    assert [y for _, y, _, _ in front["points"]] == sorted((y for _, y, _, _ in front["points"]), reverse=True)


def test_the_best_row_comes_first_on_the_timeline(compared: Comparison) -> None:
    timeline = next(
        part for part in pages.data(render(compare_report(compared)))["sections"] if part["kind"] == "timeline"
    )
    assert len(timeline["choices"]) == len(compared.rows)
    best = compared.best
    assert best is not None
    assert timeline["choices"][0]["label"].startswith(f"{best.nodes} node of {best.machine}, {best.rate}")
    assert timeline["choices"][0]["steps"][0]["iteration_us"] == pytest.approx(
        best.prediction.iteration_s * 1e6, abs=0.2
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_at_both_widths(browser: Page, compared: Comparison, tmp_path: Path, width: int) -> None:
    path = tmp_path / "compare.html"
    path.write_text(render(compare_report(compared)))
    browser.open(path, width)
    assert browser.complaints() == []
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.run("document.querySelectorAll('figure').length") == 3


def test_what_is_worth_knowing_beside_the_rows_has_tables(advised: Comparison) -> None:
    parts = pages.sections(render(compare_report(advised)))
    [title] = [title for title in parts if title.startswith("Break-even")]
    found = {row["what"]: row for row in pages.table(parts[title])}
    [advice] = advised.advice
    for each in advice.break_even:
        if each.value is not None and each.what != "efficiency":
            assert found[each.what]["rate Gb/s"].startswith(f"{each.value * 8e-9:,.4g}")
    [placement] = pages.table(parts[next(title for title in parts if title.startswith("As many ranks"))])
    assert advice.apart is not None
    assert placement["cost"].startswith(f"{100 * advice.apart.cost[0]:.1f} %")


def test_schemes_are_told_apart() -> None:
    page = render(compare_report(compare(["mlp"], ["p3.16xlarge"], nodes=[1, 2], schemes=["ddp", "naive"])))
    rows = pages.table(pages.sections(page)["Machines side by side"])
    assert sorted(row["scheme"] for row in rows) == ["ddp", "ddp", "naive", "naive"]
    assert "p3.16xlarge, naive" in page
