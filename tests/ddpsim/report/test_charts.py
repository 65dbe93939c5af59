from __future__ import annotations

from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.charts import Axis, BoxBar, Chart, ChartLine, ChartPoint, StackedBar, categories
from ddpsim.charts.timeline import TimelineStep
from ddpsim.report import Report, bars, charts, render
from ddpsim.report.model import BarChart, Charts, StepsChart, Table, TimelineChart
from ddpsim.report.rows import bar
from ddpsim.tables import ResultTable
from ddpsim.trace.records import BucketTimes
from tests import pages

VALUES = st.floats(1e-3, 1e4)
X, Y = Axis("x"), Axis("y")


def ticks(figure: pages.Element, anchor: str) -> list[tuple[float, float]]:
    """Return (place, value) of the labels of one axis."""
    key = "y" if anchor == "end" else "x"
    offset = 4 if anchor == "end" else 0
    labels = figure.all("text", class_="tick", **{"text-anchor": anchor})
    return [(float(label.attributes[key] or 0) - offset, float(label.text)) for label in labels]


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=8, unique_by=lambda pair: pair[0]))
def test_points_stand_where_the_axis_says(pairs: list[tuple[float, float]]) -> None:
    points = tuple(ChartPoint(x, y, 0.9 * y, 1.1 * y) for x, y in sorted(pairs))
    figure = pages.parse(charts.draw(Chart("t", X, Y, (ChartLine("a", points),))))
    y_axis = ticks(figure, "end")
    (low_place, low), (high_place, high) = y_axis[0], y_axis[-1]
    assert low <= min(0.9 * p.y for p in points) + 1e-9
    assert high >= max(1.1 * p.y for p in points) - 1e-9
    for circle, point in zip(figure.all("circle"), points, strict=True):
        place = low_place + (point.y - low) / (high - low) * (high_place - low_place)
        assert float(circle.attributes["cy"] or 0) == pytest.approx(place, abs=0.2 + 1e-5 * abs(place))
    for circle in figure.all("circle"):
        assert 0 <= float(circle.attributes["cx"] or -1) <= charts.WIDTH


def test_logarithms_put_factors_at_equal_distances() -> None:
    points = tuple(ChartPoint(10.0**n, 1.0 + n) for n in range(4))
    figure = pages.parse(charts.draw(Chart("t", Axis("x", scale="log"), Y, (ChartLine("a", points),))))
    places = [float(circle.attributes["cx"] or 0) for circle in figure.all("circle")]
    steps = [b - a for a, b in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)


def test_a_band_surrounds_its_curve_and_what_is_advised_has_the_colour_of_its_line() -> None:
    points = (ChartPoint(0, 10, 8, 13), ChartPoint(1, 20, 15, 30))
    lines = (
        ChartLine("1 node", points),
        ChartLine("1 node, advised", (ChartPoint(1, 12, 11, 14),), "star", "1 node"),
        ChartLine("2 nodes", points),
    )
    figure = pages.parse(charts.draw(Chart("t", Axis("x", ticks=categories(["1", "4"])), Y, lines)))
    assert len(figure.all("path", class_="band c0")) == 1
    assert len(figure.all("path", class_="star c0")) == 1
    assert len(figure.all("path", class_="curve c1")) == 1
    assert [item.text for item in figure.all("li")] == ["1 node", "2 nodes"]
    assert figure.all("circle")[0].text == "1 node: x 1, y 10 (8 to 13)"


def test_one_point_alone_is_drawn() -> None:
    figure = pages.parse(charts.draw(Chart("t", X, Y, (ChartLine("a", (ChartPoint(3.0, 0.0),)),))))
    assert len(figure.all("circle")) == 1


def test_bars_are_as_long_as_their_times() -> None:
    drawn = bars.draw(
        BarChart("t", (StackedBar("a", (("forward", 0.1), ("backward", 0.3)), 0.3, 0.8), StackedBar("b", (), 0.0, 0.0)))
    )
    figure = pages.parse(drawn)
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
    assert f".{bars.part_class(name)}" in (files("ddpsim.report") / "assets" / "page.css").read_text()


def test_dots_and_stars_lie_over_lines() -> None:
    points = (ChartPoint(0, 1), ChartPoint(1, 2))
    lines = (ChartLine("dots", points, "dots"), ChartLine("front", points))
    circles = pages.parse(charts.draw(Chart("t", X, Y, lines))).all("circle")
    assert [circle.text.partition(":")[0] for circle in circles] == ["front"] * 2 + ["dots"] * 2


def test_whiskers_stand_beside_each_other_under_their_points() -> None:
    points = (ChartPoint(0, 10, 8, 13), ChartPoint(1, 20, 15, 30))
    lines = tuple(ChartLine(label, points, whiskers=True) for label in "ab")
    chart = Chart("t", Axis("x", ticks=categories(["1", "4"])), Axis("y", scale="log"), lines, apart=0.2)
    figure = pages.parse(charts.draw(chart))
    assert not figure.all("path", class_="band c0")
    for colour in ("c0", "c1"):
        circles = figure.all("circle", class_=f"point {colour}")
        ends = figure.all("line", class_=f"whisker {colour}")
        assert [each.attributes["cx"] for each in circles] == [each.attributes["x1"] for each in ends]
        for circle, end in zip(circles, ends, strict=True):
            assert (
                float(end.attributes["y1"] or 0)
                > float(circle.attributes["cy"] or 0)
                > float(end.attributes["y2"] or 0)
            )
    assert len({circle.attributes["cx"] for circle in figure.all("circle")}) == 4


def test_upright_bars_boxes_levels_and_what_is_reported_are_drawn() -> None:
    bars_ = (StackedBar("a", (("f", 1.0), ("b", 3.0)), 3.5, 5.0, 4.5), StackedBar("b", (("f", 2.0),)))
    figure = pages.parse(charts.draw(Chart("t", Axis(""), Axis("ms", level=2.0), bars=bars_)))
    heights = [float(rect.attributes["height"] or 0) for rect in figure.all("rect")]
    assert heights == pytest.approx([heights[0], 3 * heights[0], 2 * heights[0]], abs=0.3)
    assert [item.text for item in figure.all("li")] == ["f", "b"]
    assert (len(figure.all("line", class_="reach")), len(figure.all("path", class_="star reported"))) == (1, 1)
    assert len(figure.all("line", class_="level")) == 1
    boxed = Chart("t", Axis("MB"), Y, boxes=(BoxBar("0", (1, 2, 3, 4, 5)), BoxBar("5", (1, 2, 3, 4, 5), best=True)))
    drawn = pages.parse(charts.draw(boxed))
    assert len(drawn.all("rect", class_="box c0")) == 2
    assert [text.text for text in drawn.all("text", **{"text-anchor": "middle"})][:2] == ["0", "5"]


def test_a_band_for_comparison_is_grey_and_takes_no_colour_from_lines() -> None:
    ends = (ChartPoint(1, 1, 0.9, 1.1), ChartPoint(2, 2, 1.8, 2.2))
    chart = Chart("t", X, Y, (ChartLine("exact", ends, "band"), ChartLine("a", ends[:1], "dots")))
    figure = pages.parse(charts.draw(chart))
    assert len(figure.all("path", class_="band band")) == 1
    assert len(figure.all("circle", class_="point c0")) == 1


HOSTILE = """</title></script><script>alert(1)</script><svg onload=a()>" onclick="a()' {{ 7 * 7 }} {% raise %}"""


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
