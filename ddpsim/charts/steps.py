"""Steps with their bands over what is varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.charts.model import Axis, Chart, ChartLine, ChartPoint, categories

Step = tuple[str, tuple[float, float, float]]
"""What is varied, as people write it, and the step in seconds with its 10th and 90th percentile."""
_WIDTH = 0.5
"""Of the place of one value, what the lines' marks are spread over, so that those that coincide all show."""


def step_charts(panels: Mapping[str, Mapping[str, Sequence[Step]]], varied: Axis) -> tuple[Chart, ...]:
    """Return steps with their 80 % bands over what is varied: a chart a title, a line a label.

    Values stand at equal distances, numbers ascending, others in the order in which they first come.
    """
    return tuple(_chart(title, lines, varied) for title, lines in panels.items())


def sort_values(values: Sequence[str]) -> list[str]:
    """Return the values that differ: ascending where all are numbers, else in the order in which they first come.

    >>> sort_values(["2", "4", "1", "2"]), sort_values(["default", "25", "1"])
    (['1', '2', '4'], ['default', '25', '1'])
    """
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def _chart(title: str, lines: Mapping[str, Sequence[Step]], varied: Axis) -> Chart:
    values = sort_values([value for steps in lines.values() for value, _ in steps])
    drawn = tuple(ChartLine(label, _points(steps, values), whiskers=True) for label, steps in lines.items())
    x = Axis(varied.name, varied.unit, ticks=categories(values))
    return Chart(title, x, Axis("step", "ms", "80 % band", "log"), drawn, apart=_WIDTH / len(lines))


def _points(steps: Sequence[Step], values: Sequence[str]) -> tuple[ChartPoint, ...]:
    placed = sorted((values.index(value), times) for value, times in steps)
    return tuple(ChartPoint(float(x), 1e3 * step_s, 1e3 * low_s, 1e3 * high_s) for x, (step_s, low_s, high_s) in placed)
