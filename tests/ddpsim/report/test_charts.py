from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.report import bars, charts
from ddpsim.report.model import BarChart, Chart, ChartLine, ChartPoint, StackedBar
from tests import pages

VALUES = st.floats(1e-3, 1e4)


def ticks(figure: pages.Element, anchor: str) -> list[tuple[float, float]]:
    """Return (place, value) of the labels of one axis."""
    key = "y" if anchor == "end" else "x"
    offset = 4 if anchor == "end" else 0
    labels = figure.all("text", class_="tick", **{"text-anchor": anchor})
    return [(float(label.attributes[key] or 0) - offset, float(label.text)) for label in labels]


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=8, unique_by=lambda pair: pair[0]))
def test_points_stand_where_the_axis_says(pairs: list[tuple[float, float]]) -> None:
    points = tuple(ChartPoint(x, y, 0.9 * y, 1.1 * y) for x, y in sorted(pairs))
    figure = pages.parse(charts.draw(Chart("t", "x", "y", (ChartLine("a", points),))))
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
    figure = pages.parse(charts.draw(Chart("t", "x", "y", (ChartLine("a", points),), log_x=True)))
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
    figure = pages.parse(charts.draw(Chart("t", "x", "y", lines, ticks=("1", "4"))))
    assert len(figure.all("path", class_="band c0")) == 1
    assert len(figure.all("path", class_="star c0")) == 1
    assert len(figure.all("path", class_="curve c1")) == 1
    assert [item.text for item in figure.all("li")] == ["1 node", "2 nodes"]
    assert figure.all("circle")[0].text == "1 node: x 1, y 10 (8 to 13)"


def test_one_point_alone_is_drawn() -> None:
    figure = pages.parse(charts.draw(Chart("t", "x", "y", (ChartLine("a", (ChartPoint(3.0, 0.0),)),))))
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


def test_dots_and_stars_lie_over_lines() -> None:
    points = (ChartPoint(0, 1), ChartPoint(1, 2))
    lines = (ChartLine("dots", points, "dots"), ChartLine("front", points))
    circles = pages.parse(charts.draw(Chart("t", "x", "y", lines))).all("circle")
    assert [circle.text.partition(":")[0] for circle in circles] == ["front"] * 2 + ["dots"] * 2
