"""What a report holds, whatever it is drawn with: a verdict, tables, charts, timelines, and the command.

Values are JSON's, so that the page can hold the same model; times are in seconds here, and in microseconds, rounded to
tenths, in the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ddpsim.dataclass import dataclass

SCHEMA = "ddpsim.report/1"

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text as it is shown.

    Attributes:
        words: numbers of the columns that hold text; the others hold numbers.
        note: a sentence above it.
        folded: whether it opens on a click only.
    """

    title: str
    header: Cells
    rows: tuple[Cells, ...]
    words: frozenset[int] = frozenset({0})
    note: str = ""
    folded: bool = False

    def document(self) -> dict[str, object]:
        """Return the table as JSON values."""
        return {"kind": "table", "title": self.title, "header": list(self.header), "rows": [list(r) for r in self.rows]}


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A point of a curve, with the ends of its 80 % band where it has one; a label names it instead of its line."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Points of one label.

    Attributes:
        points: ascending in x, where a line joins them.
        style: `line` joins them; `dots` stand alone; a `star` is what is advised of the line that `of` names, and is
            not in the legend.
    """

    label: str
    points: tuple[ChartPoint, ...]
    style: Literal["line", "dots", "star"] = "line"
    of: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one axis.

    Attributes:
        ticks: labels at x = 0, 1, 2, ...; none where x is a number.
        log_x: whether x, which is above 0 then, is drawn by its logarithm.
        level: a value of y to draw a line at.
    """

    title: str
    x: str
    y: str
    lines: tuple[ChartLine, ...]
    ticks: Cells = ()
    log_x: bool = False
    level: float | None = None

    def document(self) -> dict[str, object]:
        """Return the chart as JSON values."""
        lines = [
            {"label": line.label, "columns": ["x", "y", "low", "high"], "points": [_four(p) for p in line.points]}
            for line in self.lines
        ]
        return {
            "kind": "chart",
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "ticks": list(self.ticks),
            "lines": lines,
        }


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts side by side under one title."""

    title: str
    charts: tuple[Chart, ...]
    note: str = ""

    def document(self) -> dict[str, object]:
        """Return the charts as JSON values."""
        return {"kind": "charts", "title": self.title, "charts": [chart.document() for chart in self.charts]}


@dataclass(frozen=True, slots=True)
class StackedBar:
    """One bar of time: its parts one after another, and the band of its end."""

    label: str
    parts: tuple[tuple[str, float], ...]
    low_s: float
    high_s: float

    @property
    def total_s(self) -> float:
        """End of the bar without its band."""
        return sum(seconds for _, seconds in self.parts)


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars on one axis of time."""

    title: str
    bars: tuple[StackedBar, ...]
    note: str = ""

    def document(self) -> dict[str, object]:
        """Return the bars as JSON values."""
        bars = [
            {
                "label": bar.label,
                "parts_us": {name: _us(seconds) for name, seconds in bar.parts},
                "low_us": _us(bar.low_s),
                "high_us": _us(bar.high_s),
            }
            for bar in self.bars
        ]
        return {"kind": "bars", "title": self.title, "bars": bars}


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """One bucket's life in a step, in seconds from the start of forward; `wire_s` None where it is unknown."""

    index: int
    size_bytes: int
    parameters: int | None
    ready_s: float
    launched_s: float
    started_s: float
    wire_s: float | None
    finished_s: float
    written_s: float

    @property
    def moving_s(self) -> float:
        """When bytes could move: all ranks were there, as far as that is known."""
        return self.started_s if self.wire_s is None else self.wire_s

    @property
    def queued_s(self) -> float:
        """How long it was ready and no collective of it had begun."""
        return max(0.0, self.started_s - self.ready_s)

    @property
    def skew_s(self) -> float:
        """How long its collective waited for the last rank."""
        return max(0.0, self.moving_s - self.started_s)

    @property
    def on_wire_s(self) -> float:
        """How long its bytes moved."""
        return self.finished_s - self.moving_s


COLUMNS = (
    "bucket", "size_bytes", "parameters", "ready_us", "launched_us", "started_us", "wire_us", "finished_us",
    "written_us",
)  # fmt: skip
"""Of a bucket's row in a step's document."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One step of rank 0 on a timeline.

    Attributes:
        label: what it is of: torch's default, the plan, the measured run.
        phases: (name, start, end) of what computed or waited, in seconds from the start of forward.
        buckets: in launch order.
        gradients_s: when each gradient was ready, ascending; empty where unknown.
        path: (cause, stream, start, end) of the longest path, in order; empty where unknown.
    """

    label: str
    iteration_s: float
    phases: tuple[tuple[str, float, float], ...]
    buckets: tuple[BucketSpan, ...]
    gradients_s: tuple[float, ...] = ()
    path: tuple[tuple[str, str, float, float], ...] = ()

    def document(self) -> dict[str, object]:
        """Return the step as JSON values."""
        return {
            "label": self.label,
            "iteration_us": _us(self.iteration_s),
            "phases": [[name, _us(start), _us(end)] for name, start, end in self.phases],
            "columns": list(COLUMNS),
            "buckets": [_life(bucket) for bucket in self.buckets],
            "gradients_us": [_us(seconds) for seconds in self.gradients_s],
            "path": [[cause, stream, _us(start), _us(end)] for cause, stream, start, end in self.path],
        }


@dataclass(frozen=True, slots=True)
class StepsChart:
    """Steps that are drawn together, on one axis."""

    label: str
    steps: tuple[TimelineStep, ...]


@dataclass(frozen=True, slots=True)
class TimelineChart:
    """Timelines of which one at a time is shown, the one of number `first` before another is chosen."""

    title: str
    choices: tuple[StepsChart, ...]
    note: str = ""
    first: int = 0

    def document(self) -> dict[str, object]:
        """Return the timelines as JSON values."""
        choices = [{"label": c.label, "steps": [step.document() for step in c.steps]} for c in self.choices]
        return {"kind": "timeline", "title": self.title, "choices": choices}


Section = Table | Charts | BarChart | TimelineChart


@dataclass(frozen=True, slots=True)
class Report:
    """A report answers first, and then shows what the answer rests on.

    Attributes:
        verdict: what is best and how sure that is; why, and what is not ranked.
        paste: lines to paste, each with where it holds; empty where there is nothing to change.
        notes: what a reader must know of the assumptions, a sentence each.
        command: that made it; empty where a script did.
    """

    title: str
    verdict: tuple[str, str]
    sections: tuple[Section, ...]
    paste: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""

    def document(self) -> dict[str, object]:
        """Return the `ddpsim.report/1` document, which the page holds."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "verdict": list(self.verdict),
            "paste": [list(line) for line in self.paste],
            "notes": list(self.notes),
            "command": self.command,
            "sections": [section.document() for section in self.sections],
        }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _four(point: ChartPoint) -> Sequence[float | None]:
    return [point.x, point.y, point.low, point.high]


def _life(life: BucketSpan) -> list[object]:
    wire = None if life.wire_s is None else _us(life.wire_s)
    before = [_us(seconds) for seconds in (life.ready_s, life.launched_s, life.started_s)]
    return [life.index, life.size_bytes, life.parameters, *before, wire, _us(life.finished_s), _us(life.written_s)]
