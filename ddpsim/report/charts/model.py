"""What a chart is, whatever draws it: two axes with their units, lines of points with bands, bars, marks and levels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Scale = Literal["linear", "log", "log2"]
Ticks = tuple[tuple[float, str], ...]
Style = Literal["line", "curve", "dots", "star", "bound", "band"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Attributes:
        name: what it holds.
        unit: of its values; empty where they have none.
        note: what else its label says, behind the unit.
        scale: `log` and `log2` are of values above 0.
        ticks: (value, label) of those that are labelled; none are round values.
        level: a value to draw a line at, across the chart.
        low, high: its ends; None is what holds all that is drawn.
    """

    name: str
    unit: str = ""
    note: str = ""
    scale: Scale = "linear"
    ticks: Ticks = ()
    level: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def label(self) -> str:
        """Name, unit and note as they stand beside the axis."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.name}{unit}" + (f", {self.note}" if self.note else "")

    @property
    def is_log(self) -> bool:
        """Whether values stand by their logarithms."""
        return self.scale != "linear"

    def text(self, value: float) -> str:
        """Return a value as people read it: its tick's label, or four digits."""
        return dict(self.ticks).get(value, f"{value:.4g}")


def categories(labels: Iterable[str]) -> Ticks:
    """Return ticks at 0, 1, 2, ...

    >>> categories(["default", "25"])
    ((0.0, 'default'), (1.0, '25'))
    """
    return tuple((float(place), label) for place, label in enumerate(labels))


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A point of a line, with the ends of its band where it has one; a label names it instead of its line."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""

    @property
    def banded(self) -> tuple[float, float] | None:
        """Both ends of the band; None where it has none."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Points of one label.

    Attributes:
        points: ascending in x, where a line joins them.
        style: `line` joins marked points, `curve` points without marks; `dots` stand alone; a `star` is what is advised
            of the line that `of` names, or reported by somebody else where it names none; a `bound` is a short level
            line at each place; a `band` is what lies around a thin line for comparison, in grey.
        of: whose colour it has; empty is its own. A star of another line is not in the legend.
        mark: whose mark it has; empty is that of the line whose colour it has.
        whiskers: whether bands are drawn at each point instead of as an area.
    """

    label: str
    points: tuple[ChartPoint, ...]
    style: Style = "line"
    of: str = ""
    mark: str = ""
    whiskers: bool = False

    @property
    def owner(self) -> str:
        """Label whose colour it has."""
        return self.of or self.label

    @property
    def in_legend(self) -> bool:
        """Whether the legend names it."""
        return self.style != "star" or not self.of

    @property
    def coloured(self) -> bool:
        """Whether it takes a colour of those that tell lines apart."""
        return self.style not in ("band", "bound") and not (self.style == "star" and not self.of)


@dataclass(frozen=True, slots=True)
class StackedBar:
    """One bar: its parts one after another, and the band of its end, in the unit of its chart.

    Attributes:
        parts: (name, size).
        low, high: ends of the band of the whole; equal where there is none.
        reported: what somebody else reports of the whole; None is nothing.
    """

    label: str
    parts: tuple[tuple[str, float], ...]
    low: float = 0.0
    high: float = 0.0
    reported: float | None = None

    @property
    def total(self) -> float:
        """End of the bar without its band."""
        return sum(size for _, size in self.parts)


@dataclass(frozen=True, slots=True)
class BoxBar:
    """The spread of one value over its label.

    Attributes:
        spread: low end, 25 %, median, 75 %, high end.
        best: whether a star marks it.
    """

    label: str
    spread: tuple[float, float, float, float, float]
    best: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over an axis, or upright bars, or boxes, which stand at 0, 1, 2, ...

    Attributes:
        key: what the legend says above its lines.
        apart: how far neighbouring lines stand from each other at one place, so that those that coincide all show: in
            units of x, of a logarithmic axis in its natural logarithm.
    """

    title: str
    x: Axis
    y: Axis
    lines: tuple[ChartLine, ...] = ()
    bars: tuple[StackedBar, ...] = ()
    boxes: tuple[BoxBar, ...] = ()
    key: str = ""
    apart: float = 0.0

    @property
    def has_one_point(self) -> bool:
        """Whether all that its lines show is a single point, beside levels, limits and what is advised."""
        beside = ("star", "bound", "band")
        points = {(point.x, point.y) for line in self.lines if line.style not in beside for point in line.points}
        return len(points) < 2 and not self.bars and not self.boxes

    @property
    def owners(self) -> list[str]:
        """Labels that have a colour of their own, in order."""
        return list(dict.fromkeys(line.owner for line in self.lines if line.coloured))

    @property
    def marks(self) -> list[str]:
        """Labels that have a mark of their own, in order."""
        return list(dict.fromkeys(line.mark or line.owner for line in self.lines if line.coloured))

    def colour(self, line: ChartLine) -> int:
        """Return the number of a line's colour."""
        return self.owners.index(line.owner)

    def marker(self, line: ChartLine) -> int:
        """Return the number of a line's mark."""
        return self.marks.index(line.mark or line.owner)

    def places(self, line: ChartLine) -> list[float]:
        """Return where a line's points stand along x."""
        if not self.apart or not line.coloured:
            return [point.x for point in line.points]
        ways = list(dict.fromkeys((each.owner, each.mark) for each in self.lines if each.coloured))
        aside = self.apart * (ways.index((line.owner, line.mark)) - (len(ways) - 1) / 2)
        factor = math.exp(aside)
        return [point.x * factor if self.x.is_log else point.x + aside for point in line.points]

    @property
    def width(self) -> float:
        """What the lines of one place are spread over, with a place of its own for each."""
        return abs(self.apart) * len({(each.owner, each.mark) for each in self.lines if each.coloured})

    def xs(self) -> Iterator[float]:
        """Yield every value along x."""
        yield from (place for line in self.lines for place in self.places(line))
        yield from (float(place) for place in range(max(len(self.bars), len(self.boxes))))
        yield from _list_given(self.x)

    def ys(self) -> Iterator[float]:
        """Yield every value along y, ends of bands included."""
        yield from (value for line in self.lines for point in line.points for value in (point.y, *(point.banded or ())))
        for bar in self.bars:
            yield from (0.0, bar.total, *((bar.low, bar.high) if bar.low < bar.high else ()))
            yield from () if bar.reported is None else (bar.reported,)
        yield from (value for box in self.boxes for value in box.spread)
        yield from _list_given(self.y)

    def document(self) -> dict[str, object]:
        """Return the chart's lines as JSON values, as a `ddpsim.report/1` holds them."""
        return {
            "kind": "chart",
            "title": self.title,
            "x": self.x.label,
            "y": self.y.label,
            "ticks": [label for _, label in self.x.ticks],
            "lines": [
                {
                    "label": line.label,
                    "columns": ["x", "y", "low", "high"],
                    "points": [[p.x, p.y, p.low, p.high] for p in line.points],
                }
                for line in self.lines
            ],
        }


def _list_given(axis: Axis) -> Iterator[float]:
    yield from (value for value in (axis.level, axis.low, axis.high) if value is not None)
    yield from (value for value, _ in axis.ticks)
