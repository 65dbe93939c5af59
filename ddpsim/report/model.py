"""What a report holds, whatever it is drawn with: a verdict, tables, charts, timelines, and the command.

Values are JSON's, so that the page can hold the same model; times are in seconds here, and in microseconds, rounded to
tenths, in the document.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddpsim.common.tables import ResultTable
from ddpsim.report.charts.model import Chart, StackedBar
from ddpsim.report.charts.timeline import TimelineStep, microseconds

SCHEMA = "ddpsim.report/1"


@dataclass(frozen=True, slots=True)
class Table:
    """Shown.

    Attributes:
        note: a sentence above it.
        folded: whether it opens on a click only.
    """

    title: str
    shown: ResultTable
    note: str = ""
    folded: bool = False

    def document(self) -> dict[str, object]:
        """Return the table as JSON values."""
        return {"kind": "table", "title": self.title, **self.shown.document()}


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts side by side under one title."""

    title: str
    charts: tuple[Chart, ...]
    note: str = ""

    def document(self) -> dict[str, object]:
        """Return the charts as JSON values."""
        return {"kind": "charts", "title": self.title, "charts": [chart.document() for chart in self.charts]}


def draw_charts(title: str, charts: Iterable[Chart], note: str = "") -> tuple[Charts, ...]:
    """Return charts under one title, those of a single point left out; nothing where none is left."""
    drawn = tuple(chart for chart in charts if not chart.has_one_point)
    return (Charts(title, drawn, note),) if drawn else ()


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars on one axis of time, in seconds."""

    title: str
    bars: tuple[StackedBar, ...]
    note: str = ""

    def document(self) -> dict[str, object]:
        """Return the bars as JSON values."""
        bars = [
            {
                "label": bar.label,
                "parts_us": {name: microseconds(seconds) for name, seconds in bar.parts},
                "low_us": microseconds(bar.low),
                "high_us": microseconds(bar.high),
            }
            for bar in self.bars
        ]
        return {"kind": "bars", "title": self.title, "bars": bars}


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
        command: the command line that makes the page; empty for a script's.
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
