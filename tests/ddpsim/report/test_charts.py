from __future__ import annotations

from importlib.resources import files

import pytest

from ddpsim.common.tables import ResultTable
from ddpsim.report import Report, render
from ddpsim.report.charts import Axis, Chart, ChartLine, ChartPoint, StackedBar, categories
from ddpsim.report.charts.timeline import TimelineStep
from ddpsim.report.model import BarChart, Charts, StepsChart, Table, TimelineChart
from ddpsim.report.render import part_class
from ddpsim.report.rows import bar
from ddpsim.trace.records import BucketTimes
from tests import pages

X, Y = Axis("x"), Axis("y")
BANDED = (ChartPoint(0, 10, 8, 13), ChartPoint(1, 20, 15, 30))


def page_of(section: Charts | BarChart) -> pages.Element:
    """Return the page of one section."""
    return pages.parse(render(Report("t", ("", ""), (section,))))


def draw(chart: Chart) -> pages.Element:
    """Return the figure of a chart."""
    [figure] = page_of(Charts("t", (chart,))).all("figure")
    return figure


def marks(figure: pages.Element) -> list[tuple[str, float, float]]:
    """Return what each mark tells on hover, and where it stands."""
    told = [mark for mark in figure.all("use") if mark.text]
    return [(mark.text, float(mark.attributes["x"] or 0), float(mark.attributes["y"] or 0)) for mark in told]


def test_each_point_tells_its_numbers_where_it_stands() -> None:
    points = tuple(ChartPoint(x, y) for x, y in ((1.0, 30.0), (2.0, 10.0), (4.0, 20.0)))
    found = marks(draw(Chart("t", X, Y, (ChartLine("a", points), ChartLine("b", BANDED, whiskers=True)))))
    assert [text for text, _, _ in found] == [
        "a: x 1, y 30", "a: x 2, y 10", "a: x 4, y 20", "b: x 0, y 10 (8 to 13)", "b: x 1, y 20 (15 to 30)",
    ]  # fmt: skip
    (_, x1, y30), (_, x2, y10), (_, x4, y20), *_ = found
    assert (x4 - x1) / (x2 - x1) == pytest.approx(3.0, abs=1e-3)
    assert (y10 - y30) / (y20 - y30) == pytest.approx(2.0, abs=1e-3)


def test_a_chart_has_its_name_its_legend_and_the_colours_of_the_page() -> None:
    advised = ChartLine("1 node, advised", (ChartPoint(1, 12, 11, 14),), "star", "1 node")
    lines = (ChartLine("1 node", BANDED), advised, ChartLine("2 nodes", BANDED))
    figure = draw(Chart("t", Axis("x", ticks=categories(["1", "4"])), Y, lines, key="above\nbelow"))
    [svg] = figure.all("svg")
    assert (svg.attributes["role"], svg.attributes["aria-label"]) == ("img", "t: y over x")
    assert [(item.all("span")[0].attributes["class"], item.text) for item in figure.all("li")] == [
        ("key c0", "1 node"), ("key c1", "2 nodes"),
    ]  # fmt: skip
    assert [each.text for each in figure.all("p")] == ["above", "below"]
    styles = {mark.text: str(mark.attributes["style"]) for mark in figure.all("use") if mark.text}
    assert "fill: var(--c0)" in styles["1 node, advised: x 4, y 12 (11 to 14)"]
    assert "fill: var(--c1)" in styles["2 nodes: x 1, y 10 (8 to 13)"]
    texts = [text.text for text in figure.all("text")]
    assert {"1", "4", "x", "y"} <= set(texts)
    assert not svg.all("style")


def test_of_many_numbers_along_an_axis_some_are_written() -> None:
    points = tuple(ChartPoint(float(n), 1.0) for n in range(17))
    figure = draw(Chart("t", Axis("x", ticks=categories([str(2**n) for n in range(17)])), Y, (ChartLine("a", points),)))
    texts = [text.text for text in figure.all("text")]
    assert [str(2**n) in texts for n in range(17)] == [n % 3 == 0 for n in range(17)]


def test_a_page_of_charts_repeats() -> None:
    report = Report("t", ("", ""), (Charts("t", (Chart("t", X, Y, (ChartLine("a", BANDED),)),)),))
    assert render(report) == render(report)


def test_bars_are_as_long_as_their_times() -> None:
    stacks = StackedBar("a", (("forward", 0.1), ("backward", 0.3)), 0.3, 0.8), StackedBar("b", ())
    figure = page_of(BarChart("t", stacks))
    found = [(rect.attributes["x"], rect.attributes["width"]) for rect in figure.all("rect")]
    assert found == [("0.000%", "12.500%"), ("12.500%", "37.500%")]
    [reach] = figure.all("line")
    assert (reach.attributes["x1"], reach.attributes["x2"]) == ("37.500%", "100.000%")


@pytest.mark.parametrize(
    ("given", "name"),
    [({"tensor_parallel": 4}, "communication of layers"), ({"pipeline": {}}, "pipeline bubble and messages")],
)
def test_a_bar_has_what_layers_and_stages_wait_for(given: dict[str, object], name: str) -> None:
    drawn = bar({"forward_s": 0.25, "step_forward_s": 0.5, "step_layer_comm_s": 0.25, **given}, "a")
    assert (name, 0.25) in drawn.parts
    assert drawn.total == 0.75
    assert f".{part_class(name)}" in (files("ddpsim.report") / "assets" / "page.css").read_text()


def test_dots_lie_over_lines() -> None:
    points = (ChartPoint(0, 1), ChartPoint(1, 2))
    found = marks(draw(Chart("t", X, Y, (ChartLine("dots", points, "dots"), ChartLine("front", points)))))
    assert [text.partition(":")[0] for text, _, _ in found] == ["front"] * 2 + ["dots"] * 2


HOSTILE = """</title></script><script>alert(1)</script><svg onload=a()>" onclick="a()' {{ 7 * 7 }} {% raise %} $x_{$"""


def test_no_name_of_a_chart_becomes_markup_or_a_template() -> None:
    points = (ChartPoint(0, 1, 0.5, 2, HOSTILE), ChartPoint(1, 2))
    axes = Axis(HOSTILE, HOSTILE, ticks=categories([HOSTILE, "b"])), Axis(HOSTILE, HOSTILE)
    chart = Chart(HOSTILE, *axes, (ChartLine(HOSTILE, points),), key=HOSTILE)
    parts = BarChart(HOSTILE, (StackedBar(HOSTILE, ((HOSTILE, 1.0),), 0.5, 2.0),), HOSTILE)
    cells = Table(HOSTILE, ResultTable((HOSTILE, "b"), ((HOSTILE, "1"),)), HOSTILE, folded=True)
    moments = {"ready_s": 0, "launched_s": 0, "started_s": 0, "wire_s": None, "finished_s": 1, "written_s": 1}
    bucket = BucketTimes(index=0, size_bytes=1, parameters=(0,), **moments)
    step = TimelineStep(HOSTILE, 1.0, ((HOSTILE, 0.0, 1.0),), (bucket,), (1,))
    steps = TimelineChart(HOSTILE, (StepsChart(HOSTILE, (step,)),), HOSTILE)
    sections = (Charts(HOSTILE, (chart,), HOSTILE), parts, cells, steps)
    page = render(Report(HOSTILE, (HOSTILE, HOSTILE), sections, ((HOSTILE, HOSTILE),), (HOSTILE,), HOSTILE))
    root = pages.parse(page)
    assert len(root.all("script")) == 2
    assert [each.text for tag in ("title", "h1") for each in root.all(tag) if each.text == HOSTILE][:2] == [HOSTILE] * 2
    names = {
        name
        for tag in ("svg", "p", "div", "span", "details", "option", "rect")
        for e in root.all(tag)
        for name in e.attributes
    }
    assert not {name for name in names if name.startswith("on")}
    assert pages.data(page)["sections"][0]["charts"][0]["title"] == HOSTILE
    assert "49" not in root.all("h1")[0].text
